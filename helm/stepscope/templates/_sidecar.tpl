{{/*
The sidecar, as one item of a container list. For a chart of your own that has this one as a dependency:

      initContainers:
        {{- include "stepscope.sidecar" .Subcharts.stepscope | nindent 8 }}
      volumes:
        {{- include "stepscope.volumes" .Subcharts.stepscope | nindent 8 }}

Optional keys beside the context of the (sub)chart, given with `merge (dict ...) .Subcharts.stepscope`:
  settings  map of settings that win over .Values.settings
  url       address of the engine, default http://127.0.0.1:<.Values.enginePort>
  native    false: a plain container, for `containers:`; default true, a native sidecar for `initContainers:`
  onError   exit or degrade, default degrade
*/}}
{{- define "stepscope.sidecar" -}}
- {{ include "stepscope.container" . | nindent 2 | trim }}
{{- end -}}

{{- define "stepscope.container" -}}
{{- $settings := mergeOverwrite (deepCopy .Values.settings) (default (dict) .settings) -}}
{{- $url := default (printf "http://127.0.0.1:%s" (include "stepscope.scalar" .Values.enginePort)) .url -}}
name: stepscope
image: {{ include "stepscope.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if not (and (hasKey . "native") (not .native)) }}
restartPolicy: Always
{{- end }}
args:
  - serve
  - --config.on-error={{ default "degrade" .onError }}
  - {{ printf "--engine.url=%s" $url | quote }}
  - {{ printf "--web.listen-address=%s" (include "stepscope.listenAddress" .) | quote }}
{{- range include "stepscope.flags" (dict "root" . "settings" $settings) | fromYamlArray }}
  - {{ . | quote }}
{{- end }}
{{ include "stepscope.containerRest" . }}
{{- end -}}

{{/* The pod's own address family decides: empty listens on IPv4 and IPv6. */}}
{{- define "stepscope.listenAddress" -}}
{{- printf "%s:%s" .Values.web.host (include "stepscope.scalar" .Values.web.port) -}}
{{- end -}}

{{/* Flags of settings, calibration, HF cache, API key and web configuration, as a YAML list. */}}
{{- define "stepscope.flags" -}}
{{- $values := .root.Values -}}
{{- $flags := include "stepscope.flattened" (dict "prefix" "--" "map" .settings) | fromYamlArray -}}
{{- if $values.calibration.configMap -}}
{{- $flags = append $flags (printf "--calibration.file=/etc/stepscope/calibration/%s" $values.calibration.key) -}}
{{- end -}}
{{- if $values.engineApiKey.secret -}}
{{- $flags = append $flags (printf "--engine.api-key-file=/etc/stepscope/engine/%s" $values.engineApiKey.key) -}}
{{- end -}}
{{- if $values.web.configSecret -}}
{{- $flags = append $flags (printf "--web.config.file=/etc/stepscope/web/%s" $values.web.configKey) -}}
{{- end -}}
{{- if $values.hfCache.volume -}}
{{- $flags = append $flags (include "stepscope.hfCacheFlag" $values.hfCache.path) -}}
{{- end -}}
{{- $flags = concat $flags $values.extraArgs -}}
{{- toYaml $flags -}}
{{- end -}}

{{/* Whether the volume is HF_HOME or HF_HUB_CACHE: models lie below it or below its folder "hub". */}}
{{- define "stepscope.hfCacheFlag" -}}
{{- printf "--model.hf-cache=%s:%s/hub" . (trimSuffix "/" .) -}}
{{- end -}}

{{/* Nested settings as flags, `{model: {id: X}}` as `--model.id=X`, a YAML list. Null and empty text mean "not set". */}}
{{- define "stepscope.flattened" -}}
{{- range $key := keys .map | sortAlpha -}}
{{- $value := get $.map $key -}}
{{- $name := printf "%s%s" $.prefix $key -}}
{{- if kindIs "map" $value -}}
{{- include "stepscope.flattened" (dict "prefix" (printf "%s." $name) "map" $value) -}}
{{- else if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}
- {{ printf "%s=%s" $name (include "stepscope.scalar" $value) | toRawJson }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is the same for every way to run it: everything but name, image and args. */}}
{{- define "stepscope.containerRest" -}}
ports:
  - name: stepscope
    containerPort: {{ .Values.web.port }}
    protocol: TCP
env:
  # The NVIDIA runtime must not give this container a GPU, whatever the runtime class of the pod.
  - name: NVIDIA_VISIBLE_DEVICES
    value: void
{{- with .Values.extraEnv }}
{{ toYaml . | indent 2 }}
{{- end }}
livenessProbe:
{{- if .Values.web.configSecret }}
  # A password or a client certificate may be asked for; the kubelet has neither.
  tcpSocket:
    port: {{ .Values.web.port }}
{{- else }}
  httpGet:
    path: /-/healthy
    port: {{ .Values.web.port }}
    scheme: HTTP
{{- end }}
{{ toYaml .Values.livenessProbe | indent 2 }}
resources:
{{ toYaml .Values.resources | indent 2 }}
securityContext:
{{ toYaml .Values.securityContext | indent 2 }}
terminationMessagePath: /dev/termination-log
terminationMessagePolicy: FallbackToLogsOnError
{{- $mounts := include "stepscope.volumeMounts" . | fromYamlArray }}
{{- with $mounts }}
volumeMounts:
{{ toYaml . | indent 2 }}
{{- end }}
{{- end -}}

{{- define "stepscope.volumeMounts" -}}
{{- $mounts := list -}}
{{- if .Values.calibration.configMap -}}
{{- $mounts = append $mounts (dict "name" "stepscope-calibration" "mountPath" "/etc/stepscope/calibration" "readOnly" true) -}}
{{- end -}}
{{- if .Values.engineApiKey.secret -}}
{{- $mounts = append $mounts (dict "name" "stepscope-engine" "mountPath" "/etc/stepscope/engine" "readOnly" true) -}}
{{- end -}}
{{- if .Values.web.configSecret -}}
{{- $mounts = append $mounts (dict "name" "stepscope-web" "mountPath" "/etc/stepscope/web" "readOnly" true) -}}
{{- end -}}
{{- if .Values.hfCache.volume -}}
{{- $mount := dict "name" .Values.hfCache.volume "mountPath" .Values.hfCache.path "readOnly" true -}}
{{- with .Values.hfCache.subPath }}{{ $_ := set $mount "subPath" . }}{{ end -}}
{{- $mounts = append $mounts $mount -}}
{{- end -}}
{{- toYaml (concat $mounts .Values.extraVolumeMounts) -}}
{{- end -}}

{{/* Volumes that the sidecar needs in its pod, a YAML list; the HF cache is the engine's and there already. Optional: a
ConfigMap or Secret that is not there must not hold the engine's pod. */}}
{{- define "stepscope.volumes" -}}
{{- $volumes := list -}}
{{- with .Values.calibration.configMap -}}
{{- $volumes = append $volumes (dict "name" "stepscope-calibration" "configMap" (dict "name" . "optional" true)) -}}
{{- end -}}
{{- with .Values.engineApiKey.secret -}}
{{- $volumes = append $volumes (dict "name" "stepscope-engine" "secret" (dict "secretName" . "optional" true)) -}}
{{- end -}}
{{- with .Values.web.configSecret -}}
{{- $volumes = append $volumes (dict "name" "stepscope-web" "secret" (dict "secretName" . "optional" true)) -}}
{{- end -}}
{{- toYaml (concat $volumes .Values.extraVolumes) -}}
{{- end -}}
