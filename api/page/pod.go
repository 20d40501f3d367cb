package page

import (
	"encoding/json"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/yamltext"
)

// ReadPod reads a pod as the API does: fields that berth does not have are left out. A pod
// without uid or namespace, as it is before an API server has it, gets them. Which fields no pod has is not known here.
func ReadPod(text []byte) (pod *typesv1.Pod, ignored []string, err error) {
	raw, err := yamltext.ToJSON(text)
	if err != nil {
		return nil, nil, fmt.Errorf("the pod is no YAML: %w", err)
	}
	var document any
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, nil, fmt.Errorf("the pod is no JSON: %w", err)
	}
	if top, ok := document.(map[string]any); !ok || top["kind"] != "Pod" {
		return nil, nil, fmt.Errorf("expected one object of kind Pod")
	}
	if raw, err = json.Marshal(quantities(document, false)); err != nil {
		return nil, nil, err
	}
	pod = &typesv1.Pod{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, pod); err != nil {
		return nil, nil, fmt.Errorf("read the pod: %w", err)
	}
	if pod.Metadata == nil {
		pod.Metadata = &typesv1.PodMetadata{}
	}
	if pod.Metadata.Namespace == "" {
		pod.Metadata.Namespace = "default"
	}
	if pod.Metadata.Uid == "" {
		pod.Metadata.Uid = "trial-" + pod.Metadata.Name
	}
	return pod, nil, nil
}

// quantities turns the numbers of amounts (cpu: 2) into texts, as an API server does.
func quantities(v any, amounts bool) any {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			v[key] = quantities(below, amounts || key == "requests" || key == "limits" || key == "overhead")
		}
	case []any:
		for i, below := range v {
			v[i] = quantities(below, amounts)
		}
	case float64:
		if amounts {
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
	}
	return v
}
