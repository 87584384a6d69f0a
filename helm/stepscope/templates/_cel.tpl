{{/*
A YAML value as a CEL literal. dyn() lets maps and lists hold mixed types, which Kubernetes forbids otherwise. A map with
the one key "$cel" is an expression and is taken as it stands.
*/}}
{{- define "stepscope.cel" -}}
{{- if kindIs "map" . -}}
{{- if hasKey . "$cel" -}}
dyn({{ get . "$cel" }})
{{- else -}}
{{- $parts := list -}}
{{- range $key := keys . | sortAlpha -}}
{{- $parts = append $parts (printf "%s: %s" (toRawJson $key) (include "stepscope.cel" (get $ $key))) -}}
{{- end -}}
dyn({ {{- join ", " $parts -}} })
{{- end -}}
{{- else if kindIs "slice" . -}}
{{- $parts := list -}}
{{- range . }}{{ $parts = append $parts (include "stepscope.cel" .) }}{{ end -}}
dyn([{{ join ", " $parts }}])
{{- else if kindIs "string" . -}}
dyn({{ toRawJson . }})
{{- else if kindIs "invalid" . -}}
dyn(null)
{{- else -}}
dyn({{ include "stepscope.scalar" . }})
{{- end -}}
{{- end -}}

{{/* A list of texts as a CEL list of strings. */}}
{{- define "stepscope.celStrings" -}}
{{- $parts := list -}}
{{- range . }}{{ $parts = append $parts (toRawJson .) }}{{ end -}}
[{{ join ", " $parts }}]
{{- end -}}
