{{/* Parts of the pods of Ray and Redis. */}}

{{/* Where a pod may run, its class, and the registry's credentials: list of root, settings of the component, secrets. */}}
{{- define "justitia.placement" -}}
{{- with (index . 1) -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}
{{- with (index . 2) }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels and annotations of a Ray pod: list of root, settings, component. */}}
{{- define "justitia.podMetadata" -}}
labels:
  {{- include "justitia.selector" (list (index . 0) (index . 2)) | nindent 2 }}
  {{- with (index . 1).podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: "8080"
  {{- with (index . 1).podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "justitia.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000   # the image's user
runAsGroup: 1000
fsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "justitia.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Environment of every Ray pod: list of root, whether the pod reads models. */}}
{{- define "justitia.env" -}}
{{- $root := index . 0 -}}
{{- with $root.Values -}}
# Read by the scheduler, the ingresses and the predictor; by `justitia shutdown` on the head.
- name: JUSTITIA_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .redis.passwordSecret }}, key: {{ .redis.passwordKey }}}}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
# Logs of a process: 4 files of 50 MB, so that those of 30 processes fit into `tmp`.
- {name: RAY_ROTATION_MAX_BYTES, value: "52428800"}
- {name: RAY_ROTATION_BACKUP_COUNT, value: "3"}
# HAProxy in front of Serve, as `justitia env FILE --descriptors 65536 --format yaml` prints it.
- {name: RAY_SERVE_ENABLE_HA_PROXY, value: "1"}
- {name: RAY_SERVE_THROUGHPUT_OPTIMIZED, value: "1"}
- {name: RAY_SERVE_HAPROXY_MAXCONN, value: {{ .front.maxConnections | int | quote }}}
- {name: RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S, value: "3600"}
- {name: RAY_SERVE_HAPROXY_RETRY_ON, value: "conn-failure empty-response"}
# HAProxy without splicing, with which a unary call whose caller left runs to its end.
- name: RAY_SERVE_HAPROXY_BINARY_PATH
  value: /opt/justitia/lib/python3.11/site-packages/justitia_ray/serve/haproxy_without_splicing
- {name: RAY_SERVE_METRICS_EXPORT_INTERVAL_MS, value: "2000"}
{{- if index $ 1 }}
{{- if .modelCache.enabled }}
- {name: HF_HOME, value: {{ .modelCache.mountPath }}}
{{- end }}
{{- with .hub.tokenSecret }}
- name: HF_TOKEN   # optional: only gated models need one
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $root.Values.hub.tokenKey }}, optional: true}}
{{- end }}
{{- end }}
{{- with .extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Probes of a Ray container: Ray is started, and alive. */}}
{{- define "justitia.probes" -}}
startupProbe:   # importing Ray on a cold disk takes a minute at worst
  httpGet: {path: /api/healthz, port: agent}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:   # this node's raylet, and on the head the GCS
  httpGet: {path: /api/healthz, port: agent}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 12   # 2 min: a node that only stood still keeps its engines
{{- end }}

{{/* Beginning of the container of a worker: list of root, settings. */}}
{{- define "justitia.worker" -}}
{{- $root := index . 0 -}}
name: ray-worker
image: {{ include "justitia.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
env:
  {{- include "justitia.env" (list $root true) | nindent 2 }}
{{- with $root.Values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
lifecycle:   # SIGTERM ends Ray at once: before it, Serve moves what runs here
  preStop: {exec: {command: [leave-node, {{ sub (index . 1).terminationGracePeriodSeconds 60 | quote }}]}}
ports:
  - {name: serve, containerPort: {{ $root.Values.serve.port }}}
  - {name: metrics, containerPort: 8080}
  - {name: agent, containerPort: 52365}
{{ include "justitia.probes" . }}
securityContext:
  {{- include "justitia.containerSecurity" . | nindent 2 }}
{{- end }}

{{/* Mounts of a Ray container, and the volumes: what a pod may write, Ray's session and logs, and caches. */}}
{{- define "justitia.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/ray}
{{- end }}
{{- define "justitia.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 8Gi}   # 6 GB of logs at most, and sockets; beyond it the pod is evicted
- name: home
  emptyDir: {sizeLimit: 2Gi}   # the tiny model and compiled kernels
{{- end }}

{{/* Mounts and volumes of workers beyond those. */}}
{{- define "justitia.workerMounts" -}}
{{- if .Values.modelCache.enabled }}
- {name: models, mountPath: {{ .Values.modelCache.mountPath }}}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- define "justitia.workerVolumes" -}}
{{- if .Values.modelCache.enabled }}
- name: models
  persistentVolumeClaim: {claimName: {{ include "justitia.modelClaim" . }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
