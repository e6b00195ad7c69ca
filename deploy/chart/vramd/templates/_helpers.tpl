{{- define "vramd.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "vramd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vramd.labels" -}}
{{ include "vramd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The rendered configuration. Fails if it would silently ignore a value, or may pin memory without a bound. */ -}}
{{- define "vramd.config" -}}
{{- $config := tpl .Values.config . -}}
{{- if and .Values.tenants (not (regexMatch "(?m)^[^#\\n]*\\btenants_file\\s*=" $config)) -}}
{{- fail "tenants is set, and config names no tenants_file: add /etc/vramd/tenants.toml to its [daemon]" -}}
{{- end -}}
{{- $sized := regexMatch "(?m)^[^#\\n]*\\bhost_size\\s*=" $config -}}
{{- if and (ne .Values.hostSize "auto") (not $sized) -}}
{{- fail "hostSize is set, and config names no host_size: add it to its [memory], or leave hostSize out" -}}
{{- end -}}
{{- $auto := or (not $sized) (regexMatch "(?m)^[^#\\n]*\\bhost_size\\s*=\\s*[\"']auto[\"']" $config) -}}
{{- if and $auto (not (dig "limits" "memory" "" .Values.resources)) -}}
{{- fail "resources.limits.memory is not set, so an automatic host tier could be half of the node's free memory" -}}
{{- end -}}
{{- $config -}}
{{- end -}}
