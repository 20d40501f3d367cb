package berth_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

// TestResizeTo: only cpu and memory of a specification are requested, and a request that is
// missing is the limit.
func TestResizeTo(t *testing.T) {
	t.Parallel()
	var pod typesv1.Pod
	var want admissionv1.ResizeRequest
	for text, m := range map[string]proto.Message{
		`{"metadata": {"uid": "a"}, "status": {"qosClass": "Burstable"}, "spec": {
			"resources": {"requests": {"cpu": "3", "hugepages-2Mi": "4Mi"}},
			"initContainers": [{"name": "first"}],
			"containers": [{"name": "main", "resources": {"requests": {"memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi", "example.com/gpu": "1"}}}]}}`: &pod,
		`{"podUid": "a", "qosClass": "QOS_CLASS_BURSTABLE", "resources": {"requests": {"cpu": "3"}}, "containers": [
			{"containerName": "main", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}}]}`: &want,
	} {
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			t.Fatal(err)
		}
	}
	if got := berth.ResizeTo(&pod); !proto.Equal(got, &want) {
		t.Errorf("got  %v\nwant %v", got, &want)
	}
}
