{{/* Name of the RayService, and beginning of all other names. */}}
{{- define "justitia.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name }}{{ $name = .Release.Name }}{{ else }}{{ $name = printf "%s-%s" .Release.Name $name }}{{ end -}}
{{- default $name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels of an object. Pods have only those of "justitia.selector": with the chart's version in a pod's labels,
     each release would look like a change of all pods. */}}
{{- define "justitia.labels" -}}
app.kubernetes.io/part-of: {{ include "justitia.fullname" . }}
{{ include "justitia.releaseLabels" . }}
{{- end }}

{{/* Those of them that name the release and its chart. */}}
{{- define "justitia.releaseLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels by which services, budgets and policies select the pods of a component: list of root and component. */}}
{{- define "justitia.selector" -}}
app.kubernetes.io/part-of: {{ include "justitia.fullname" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Expressions that select the pods of several components: list of root and components. */}}
{{- define "justitia.selectAny" -}}
matchExpressions:
  - {key: app.kubernetes.io/part-of, operator: In, values: [{{ include "justitia.fullname" (index . 0) }}]}
  - {key: app.kubernetes.io/component, operator: In, values: [{{ join ", " (index . 1) }}]}
{{- end }}

{{/* Image of the Ray pods. */}}
{{- define "justitia.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default (printf "%s-%s" $.Chart.AppVersion .variant) .tag }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Address of Redis, host:port. */}}
{{- define "justitia.redisAddress" -}}
{{- if .Values.redis.enabled -}}
{{ include "justitia.fullname" . }}-redis:6379
{{- else -}}
{{ required "redis.externalAddress: host:port of your Redis is needed, because redis.enabled is false" .Values.redis.externalAddress }}
{{- end -}}
{{- end }}

{{/* Name of the claim that holds the models. */}}
{{- define "justitia.modelClaim" -}}
{{ default (printf "%s-models" (include "justitia.fullname" .)) .Values.modelCache.existingClaim }}
{{- end }}

{{/* Serve configuration file: that of the user, or one from `serve.args` and `serve.userConfig`. */}}
{{- define "justitia.serveConfig" -}}
{{- if .Values.serve.config -}}
{{ .Values.serve.config }}
{{- else -}}
{{- $url := default (printf "redis://%s/1" (include "justitia.redisAddress" .)) .Values.redis.externalUrl -}}
{{- $store := dict "redis_url" $url "redis_password_env" "JUSTITIA_REDIS_PASSWORD" -}}
{{- $args := dict "store" $store -}}
{{- if .Values.access.keysSecret }}{{ $_ := set $args "access" (dict "keys_file" "/etc/justitia/keys.yaml") }}{{ end -}}
{{- $args = mergeOverwrite $args (deepCopy .Values.serve.args) -}}
{{- $onEngine := dict "num_cpus" 0 "resources" (dict "engine" 1) -}}
{{- if .Values.engines.gpus }}{{ $_ := set $onEngine "num_gpus" .Values.engines.gpus }}{{ end -}}
proxy_location: EveryNode
http_options:
  host: 0.0.0.0   # the pod's address; the NetworkPolicies say who reaches it
  port: {{ .Values.serve.port }}
applications:
  - name: justitia
    route_prefix: /
    import_path: justitia_ray.serve.app:build
    args:
      {{- toYaml $args | nindent 6 }}
    deployments:
      - name: Ingress
        num_replicas: {{ .Values.cpu.replicas }}
        max_replicas_per_node: 1   # one in each `cpu` pod, which is ready only with a proxy
        ray_actor_options: {num_cpus: 1}
        user_config:
          {{- toYaml .Values.serve.userConfig | nindent 10 }}
      - name: Predictor
        num_replicas: 1   # while it is away, the ingresses use their copy of the class means
        ray_actor_options: {num_cpus: 0.5}
      - name: Replica
        num_replicas: {{ .Values.engines.replicas }}
        ray_actor_options: {{ toJson $onEngine }}   # `engines` pods only
{{ end -}}
{{- end }}
