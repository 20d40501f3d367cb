package decisions_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/workload"
)

func TestReadResize(t *testing.T) {
	t.Parallel()
	got, err := decisions.ReadResize(&admissionv1.ResizeRequest{
		PodUid: "a", Owner: "me", AdmissionId: "id", IfRevision: 7, DryRun: true, QosClass: typesv1.QOSClass_QOS_CLASS_BURSTABLE,
		MaxDisruption: admissionv1.Disruption_DISRUPTION_MOVE_CPUS, MaxMoveDisruption: admissionv1.Disruption_DISRUPTION_NONE,
		Containers: []*admissionv1.ContainerResources{{
			ContainerName: "main",
			Resources: &typesv1.ResourceRequirements{
				Requests: map[string]string{"cpu": "1500u", "memory": "1Gi"}, Limits: map[string]string{"cpu": "2"},
			},
		}},
		Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"cpu": "3"}},
	})
	want := live.ResizeRequest{
		UID: "a", Owner: "me", AdmissionID: "id", IfRevision: 7, DryRun: true, MaxDisruption: live.MovesCPUs,
		MaxMove: live.NoDisruption, QoS: workload.Burstable,
		Changes: []workload.Change{
			{
				Container: "main", Requests: workload.Quantities{workload.CPU: 2, workload.Memory: 1 << 30},
				Limits: workload.Quantities{workload.CPU: 2000},
				Excess: &workload.Excess{Requests: workload.Quantities{workload.CPU: 500_000_000}},
			},
			{Limits: workload.Quantities{workload.CPU: 3000}},
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
}

func TestBadResizes(t *testing.T) {
	t.Parallel()
	main := func(r *typesv1.ResourceRequirements) *admissionv1.ContainerResources {
		return &admissionv1.ContainerResources{ContainerName: "main", Resources: r}
	}
	_, err := decisions.ReadResize(&admissionv1.ResizeRequest{
		Owner: "No", AdmissionId: strings.Repeat("x", 129), MaxDisruption: 9, MaxMoveDisruption: 8,
		Containers: []*admissionv1.ContainerResources{
			main(&typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "much", "example.com/gpu": "1"}}), main(nil), {},
		},
		Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"hugepages-2Mi": "2Mi"},
			Claims: []*typesv1.ResourceClaim{{Name: "c"}}},
	})
	var e *errdefs.Error
	if !errors.As(err, &e) || e.Class != errdefs.Invalid {
		t.Fatal(err)
	}
	var fields []string
	for _, f := range e.Fields {
		fields = append(fields, f.Field)
	}
	want := []string{
		"pod_uid", "owner", "admission_id", "max_disruption", "max_move_disruption", `containers[0].resources.requests["cpu"]`,
		`containers[0].resources.requests["example.com/gpu"]`, "containers[1].container_name", "containers[2].container_name",
		`resources.limits["hugepages-2Mi"]`, "resources.claims",
	}
	if !slices.Equal(fields, want) {
		t.Errorf("got  %q\nwant %q", fields, want)
	}
	many := &admissionv1.ResizeRequest{PodUid: "a", Containers: make([]*admissionv1.ContainerResources, workload.DefaultMaxContainers+1)}
	if _, err := decisions.ReadResize(many); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("too many containers: %v", err)
	}
}
