{{/* Combinations of values that would install something broken: each stops the installation with the reason. */}}
{{- define "justitia.checks" -}}
{{- with .Values.engines }}
{{- if or (gt (int .minReplicas) (int .replicas)) (gt (int .replicas) (int .maxReplicas)) }}
{{- fail (printf "engines: minReplicas %v, replicas %v, maxReplicas %v: they must not decrease" .minReplicas .replicas .maxReplicas) }}
{{- end }}
{{- end }}
{{- if not .Values.serve.config }}
{{- $args := .Values.serve.args }}
{{- $vllm := dig "engine" "vllm_args" dict $args }}
{{- $ranks := mul (dig "tensor_parallel_size" 1 $vllm) (dig "pipeline_parallel_size" 1 $vllm) }}
{{- $gpus := int .Values.engines.gpus }}
{{- if and $gpus (ne (int $ranks) $gpus) }}
{{- fail (printf "engines.gpus is %d, and serve.args.engine.vllm_args needs %d (tensor_parallel_size times pipeline_parallel_size)" $gpus $ranks) }}
{{- end }}
{{- $callers := mul (dig "ingress" "max_outstanding" 20000 $args) .Values.cpu.replicas }}
{{- if ge (int $callers) (int .Values.front.maxConnections) }}
{{- fail (printf "front.maxConnections is %v, and %d callers may wait (serve.args.ingress.max_outstanding times cpu.replicas): callers beyond the connections would hang; lower max_outstanding" .Values.front.maxConnections $callers) }}
{{- end }}
{{- if not (dig "metrics" "enabled" true $args) }}
{{- fail "serve.args.metrics.enabled is false: engine pods would never be ready, because `engine-ready` reads a metric" }}
{{- end }}
{{- if and (eq .Values.ray.upgradeStrategy "NewCluster") (eq (dig "name" "justitia" $args) "justitia") }}
{{- fail "ray.upgradeStrategy is NewCluster: give serve.args.name another value for each new cluster (`justitia-2`), or the schedulers of both claim one leadership" }}
{{- end }}
{{- end }}
{{- end }}
