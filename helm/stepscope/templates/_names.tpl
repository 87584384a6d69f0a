{{/* Name of everything that this release makes. It never begins with "vllm": a Service of such a name would set VLLM_*
variables in every pod of its namespace, and VLLM_PORT stops vLLM. */}}
{{- define "stepscope.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if hasPrefix "stepscope" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "stepscope-%s" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Cluster-wide objects carry the namespace too, so that one release per namespace works. */}}
{{- define "stepscope.clusterName" -}}
{{- printf "%s.%s" (include "stepscope.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "stepscope.selectorLabels" -}}
app.kubernetes.io/name: stepscope
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "stepscope.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "stepscope.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* repository:tag, or repository@digest where a digest is given: the digest says it all. */}}
{{- define "stepscope.image" -}}
{{- $image := .Values.image -}}
{{- $name := $image.repository -}}
{{- with $image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* A value as a flag shows it. Numbers of a values file are floats for Helm: 33554432 must not become 3.3554432e+07. */}}
{{- define "stepscope.scalar" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ printf "%.0f" . }}{{ else }}{{ printf "%v" . }}{{ end -}}
{{- else -}}
{{- printf "%v" . -}}
{{- end -}}
{{- end -}}

{{/* Name of the ConfigMap of one dashboard file. Context: dict "root" "path". */}}
{{- define "stepscope.dashboardName" -}}
{{- printf "%s-dashboard-%s" (include "stepscope.fullname" .root) (base .path | trimSuffix ".json" | lower | replace "_" "-") | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "stepscope.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- $total := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" . -1 -}}
{{- $total = add $total (mul (regexFind "[0-9]+" . | int) (get $units (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- $total -}}
{{- end -}}
