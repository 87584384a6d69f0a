{{/* A shipped file with its placeholders filled: `<<name>>` becomes the threshold of that name, the operator's or the
shipped one. Never run through tpl: the braces in it are Prometheus' own. */}}
{{- define "stepscope.filled" -}}
{{- $text := .text -}}
{{- $given := .root.Values.prometheusRule.thresholds -}}
{{- range $name, $entry := .root.Files.Get "files/rules/thresholds.yaml" | fromYaml -}}
{{- $value := $entry.value -}}
{{- if hasKey $given $name }}{{ $value = get $given $name }}{{ end -}}
{{- $text = replace (printf "<<%s>>" $name) (include "stepscope.scalar" $value) $text -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* Groups of all rule files, as `groups:` of a rule file. */}}
{{- define "stepscope.ruleGroups" -}}
{{- $root := . -}}
{{- $files := list "recording.yaml" "alerts.yaml" -}}
{{- if .Values.prometheusRule.absent }}{{ $files = append $files "alerts-absent.yaml" }}{{ end -}}
{{- $groups := list -}}
{{- range $file := $files -}}
{{- $text := $root.Files.Get (printf "files/rules/%s" $file) -}}
{{- range $group := (include "stepscope.filled" (dict "root" $root "text" $text) | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- if not (and $rule.alert (has $rule.alert $root.Values.prometheusRule.disabled)) -}}
{{- if and $rule.alert $root.Values.prometheusRule.alertLabels -}}
{{- $_ := set $rule "labels" (mergeOverwrite (deepCopy (default (dict) $rule.labels)) $root.Values.prometheusRule.alertLabels) -}}
{{- end -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $_ := set $group "rules" $rules -}}
{{- $groups = append $groups $group -}}
{{- end -}}
{{- end -}}
{{- end -}}
groups:
{{ toYaml $groups }}
{{- end -}}
