{{/*
The CEL of one injection target. Three rules keep an injected pod alive:
- the patch never makes a pod that the API server would then refuse (names, ports and volumes that are taken are looked for);
- a wrong annotation becomes a flag that stepscope refuses by name, and --config.on-error=degrade keeps it running;
- an expression that fails at run time leaves the pod as it was (failurePolicy: Ignore).
Context: dict "root" (chart context), "target" (one item of .Values.injection.targets).
*/}}
{{- define "stepscope.policyConditions" -}}
- name: not-opted-out
  expression: >-
    object.metadata.?annotations[?"stepscope.io/inject"].orValue("true") != "false"
- name: not-there-already
  expression: >-
    !(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c, c.name == "stepscope")
- name: no-volume-of-the-same-name
  expression: >-
    !object.spec.?volumes.orValue([]).exists(v, v.name.startsWith("stepscope-"))
- name: linux
  expression: >-
    object.spec.?os.?name.orValue("linux") == "linux"
- name: not-a-mirror-of-a-static-pod
  expression: >-
    !("kubernetes.io/config.mirror" in object.metadata.?annotations.orValue({}))
{{- if not .target.includeWorkers }}
# A further node of one engine (LeaderWorkerSet, Ray) has no metrics page of its own.
- name: not-a-worker
  expression: >-
    object.metadata.?labels[?"leaderworkerset.sigs.k8s.io/worker-index"].orValue("0") == "0" &&
    object.metadata.?labels[?"ray.io/node-type"].orValue("head") != "worker"
{{- end }}
{{- end -}}

{{- define "stepscope.policyVariables" -}}
{{- $values := .root.Values -}}
{{- $target := .target -}}
{{- $port := include "stepscope.scalar" $values.web.port -}}
{{- $settings := mergeOverwrite (deepCopy $values.settings) (deepCopy (default (dict) $target.settings)) -}}
{{- $hardware := default (dict) $settings.hardware -}}
{{- $flags := include "stepscope.flags" (dict "root" .root "settings" $settings) | fromYamlArray -}}
- name: annotations
  expression: >-
    object.metadata.?annotations.orValue({})
- name: containers
  expression: >-
    object.spec.containers + object.spec.?initContainers.orValue([])
- name: hostNetwork
  expression: >-
    object.spec.?hostNetwork.orValue(false)
- name: enginePort
  expression: >-
    variables.annotations[?"stepscope.io/engine-port"].orValue({{ include "stepscope.scalar" (default $values.enginePort $target.enginePort) | quote }})
- name: portText
  expression: >-
    variables.annotations[?"stepscope.io/port"].orValue("")
- name: portTextIsRight
  expression: >-
    variables.portText.matches("^[1-9][0-9]{0,4}$") && int(variables.portText) <= 65535
# On the host network the port must differ from pod to pod as the engines' ports do.
- name: wantedPort
  expression: >-
    variables.portTextIsRight ? int(variables.portText) :
    variables.hostNetwork && variables.enginePort.matches("^[1-9][0-9]{0,4}$") ?
    int(variables.enginePort) + {{ sub (int $port) (int $values.enginePort) }} : {{ $port }}
- name: freePorts
  expression: >-
    [variables.wantedPort, {{ $port }}, {{ add (int $port) 1 }}, {{ add (int $port) 2 }}, {{ add (int $port) 3 }}, {{ add (int $port) 4 }}].filter(p,
    p > 0 && p <= 65535 && string(p) != variables.enginePort &&
    !variables.containers.exists(c, c.?ports.orValue([]).exists(used, used.containerPort == p || used.?hostPort.orValue(0) == p)))
- name: port
  expression: >-
    variables.freePorts.size() > 0 ? variables.freePorts[0] : 0
{{- if not $hardware.gpu }}
# The node that the pod asks for names the GPU, as the device plugin's feature discovery labels it.
- name: gpusAskedFor
  expression: >-
    object.spec.?nodeSelector[?{{ $values.injection.gpuLabel | quote }}].hasValue() ?
    [object.spec.nodeSelector[{{ $values.injection.gpuLabel | quote }}]] :
    object.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([]).filter(t,
    t.?matchExpressions.orValue([]).exists(e, e.key == {{ $values.injection.gpuLabel | quote }} && e.operator == "In" && e.values.size() == 1)).map(t,
    t.matchExpressions.filter(e, e.key == {{ $values.injection.gpuLabel | quote }})[0].values[0])
- name: gpu
  expression: >-
    variables.annotations[?"stepscope.io/gpu"].orValue(variables.gpusAskedFor.size() == 1 ? variables.gpusAskedFor[0] : "")
{{- else }}
- name: gpu
  expression: >-
    variables.annotations[?"stepscope.io/gpu"].orValue({{ $hardware.gpu | toString | toRawJson }})
{{- end }}
{{- if not $hardware.count }}
# One engine per pod is the rule. Where several share it (data parallel), stepscope.io/gpu-count says how many GPUs each has.
- name: gpuCount
  expression: >-
    variables.annotations[?"stepscope.io/gpu-count"].orValue(string(
    variables.containers.map(c, {{ include "stepscope.celStrings" $values.injection.gpuResources }}.map(r,
    c.?resources.?limits[?r].hasValue() && isQuantity(string(c.resources.limits[r])) ?
    quantity(string(c.resources.limits[r])).asInteger() : 0).sum()).sum()))
{{- else }}
- name: gpuCount
  expression: >-
    variables.annotations[?"stepscope.io/gpu-count"].orValue({{ include "stepscope.scalar" $hardware.count | quote }})
{{- end }}
{{- with $target.modelVolume }}
- name: hasModelVolume
  expression: >-
    object.spec.?volumes.orValue([]).exists(v, v.name == {{ .name | quote }})
{{- end }}
{{- $static := list -}}
{{- range $flags -}}
{{- if not (regexMatch "^--hardware\\.(gpu|count)=" .) }}{{ $static = append $static . }}{{ end -}}
{{- end }}
- name: flags
  expression: >-
    {{ include "stepscope.celStrings" $static }}
{{- with $target.modelVolume }} +
    (variables.hasModelVolume ? {{ include "stepscope.celStrings" (list (eq .setting "hf-cache" | ternary (include "stepscope.hfCacheFlag" .mountPath) (printf "--model.%s=%s" .setting .mountPath))) }} : [])
{{- end }}
# The last of two equal flags counts. Another way to name the model must go, or the two would exclude each other.
- name: args
  expression: >-
    ["serve", "--config.on-error=degrade", {{ printf "--engine.url=%s://127.0.0.1:" (default "http" $target.engineScheme) | quote }} + variables.enginePort,
    {{ printf "--web.listen-address=%s:" $values.web.host | quote }} + string(variables.port)] +
    variables.flags.filter(f, !(("stepscope.io/model" in variables.annotations) && (f.startsWith("--model.config=") || f.startsWith("--model.id=")))) +
    (variables.gpu != "" ? ["--hardware.gpu=" + variables.gpu] : []) +
    (variables.gpuCount != "0" ? ["--hardware.count=" + variables.gpuCount] : []) +
    (variables.annotations[?"stepscope.io/model"].orValue("") != "" ? ["--model.id=" + variables.annotations["stepscope.io/model"]] : []) +
    (variables.annotations[?"stepscope.io/objective"].orValue("") != "" ? ["--objective.tokens-per-second=" + variables.annotations["stepscope.io/objective"]] : []) +
    variables.annotations.filter(k, k.startsWith("set.stepscope.io/")).map(k, "--" + k.substring(17) + "=" + variables.annotations[k]) +
    (variables.portText != "" && !variables.portTextIsRight ? ["--annotation-stepscope.io/port-is-no-port"] : [])
{{- end -}}

{{/* The patch: pod label, volumes, and the container last among the init containers, so that it delays none of them. */}}
{{- define "stepscope.policyPatch" -}}
{{- $rest := include "stepscope.containerRest" .root | fromYaml -}}
{{- $port := dict "$cel" "variables.port" -}}
{{- $_ := set (index $rest.ports 0) "containerPort" $port -}}
{{- $probe := $rest.livenessProbe -}}
{{- if $probe.httpGet }}{{ $_ := set $probe.httpGet "port" $port }}{{ else }}{{ $_ := set $probe.tcpSocket "port" $port }}{{ end -}}
{{- /* A pod with resources of its own as a whole has shared them out already. */ -}}
{{- $_ := set $rest "resources" (dict "$cel" (printf "has(object.spec.resources) ? dyn({}) : %s" (include "stepscope.cel" .root.Values.resources))) -}}
{{- with .target.modelVolume -}}
{{- $mount := dict "name" .name "mountPath" .mountPath "readOnly" true -}}
{{- with .subPath }}{{ $_ := set $mount "subPath" . }}{{ end -}}
{{- $mounts := default (list) $rest.volumeMounts -}}
{{- $_ := set $rest "volumeMounts" (dict "$cel" (printf "variables.hasModelVolume ? %s : %s" (include "stepscope.cel" (append $mounts $mount)) (include "stepscope.cel" $mounts))) -}}
{{- end -}}
{{- $container := mergeOverwrite $rest (dict "name" "stepscope" "image" (include "stepscope.image" .root) "imagePullPolicy" .root.Values.image.pullPolicy "restartPolicy" "Always" "args" (dict "$cel" "variables.args")) -}}
{{- $volumes := include "stepscope.volumes" .root | fromYamlArray -}}
variables.freePorts.size() == 0 ? [] :
(has(object.metadata.labels) ? [] : [JSONPatch{op: "add", path: "/metadata/labels", value: {}}]) +
[JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("stepscope.io/injected"), value: {{ .root.Chart.Version | replace "+" "_" | quote }}}] +
{{- if $volumes }}
(has(object.spec.volumes) ? [] : [JSONPatch{op: "add", path: "/spec/volumes", value: []}]) +
[
{{- range $index, $volume := $volumes }}{{ if $index }},{{ end }}
JSONPatch{op: "add", path: "/spec/volumes/-", value: {{ include "stepscope.cel" $volume }}}
{{- end -}}
] +
{{- end }}
(has(object.spec.initContainers) ? [] : [JSONPatch{op: "add", path: "/spec/initContainers", value: []}]) +
[JSONPatch{op: "add", path: "/spec/initContainers/-", value: dyn({
{{- range $index, $key := keys $container | sortAlpha }}{{ if $index }},{{ end }}
  {{ toRawJson $key }}: {{ include "stepscope.cel" (get $container $key) }}
{{- end }}
})}]
{{- end -}}
