{{/* One engine, one target, no service discovery: no right to read the API is needed. */}}
{{- define "stepscope.quickstartPrometheusConfig" -}}
global:
  scrape_interval: 15s
  scrape_timeout: 10s
  evaluation_interval: 15s
rule_files:
  - /etc/prometheus/rules.yml
scrape_configs:
  - job_name: stepscope
    static_configs:
      - targets:
          - {{ printf "%s-engine:%s" (include "stepscope.fullname" .) (include "stepscope.scalar" .Values.web.port) }}
        labels:
          namespace: {{ .Release.Namespace }}
{{- end -}}
