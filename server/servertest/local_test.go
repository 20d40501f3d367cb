package servertest

import (
	"testing"
	"testing/synctest"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
)

// TestLocal: a berthd without sockets admits a pod, sends the event, and has the pod after a restart. A stream ends with its berthd.
func TestLocal(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Machine, c.CPU.Policy, c.Reserved.CPUs = "1s1n4c1t", "static", cpuset.Of(0)
	local, err := NewLocal(c)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		d, err := local.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		client := berth.Over(d, berth.Options{})
		if err := client.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		now, err := client.Allocation().GetRevision(t.Context(), &allocationv1.GetRevisionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		watch, err := client.Allocation().Watch(t.Context(), &allocationv1.WatchRequest{
			FromRevision: now.GetRevision(), Types: []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_ADDED},
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the stream is served: the event of the pod comes alone, and encoded
		pod := &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Uid: "job", Name: "job", Namespace: "default"},
			Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
				Name: "main", Resources: &typesv1.ResourceRequirements{Limits: map[string]string{"cpu": "2", "memory": "1Gi"}},
			}}},
		}
		if answer, err := client.Admit(t.Context(),
			&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}}); err != nil ||
			answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			t.Fatalf("admission: %v, %v", answer, err)
		}
		for seen := false; !seen; {
			message, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range message.GetEvents() {
				seen = seen || e.GetAdded() != nil
			}
		}
		again, err := d.Restart(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer again.Stop()
		for err == nil {
			_, err = watch.Recv()
		}
		if !berth.IsUnavailable(err) {
			t.Errorf("the stream of the berthd that has ended: %v", err)
		}
		list, err := berth.Over(again, berth.Options{}).Allocation().List(t.Context(), &allocationv1.ListRequest{})
		if err != nil || len(list.GetPods()) != 1 {
			t.Errorf("after the restart: %v, %v", list, err)
		}
		if _, err := berth.Over(again, berth.Options{}).Allocation().Get(t.Context(),
			&allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "none"}}); !berth.IsNotFound(err) {
			t.Errorf("a pod that is not there: %v", err)
		}
	})
}
