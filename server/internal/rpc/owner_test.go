package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc/peer"

	"github.com/berthd/berth/api/access"
	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// called is the context of a call by a user.
func called(uid uint32) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: Peer{UID: uid}})
}

// TestActsFor: whose name a grant has is acted for by those who have the grant, by root
// and by admins.
func TestActsFor(t *testing.T) {
	t.Parallel()
	kubernetes, other, admin, reader := uint32(1000), uint32(1001), uint32(1002), uint32(1003)
	a := Access{Self: 77, Grants: []access.Grant{
		{UID: &kubernetes, Roles: []access.Role{access.Agent}, Owners: []string{"kubernetes", "dra"}},
		{UID: &other, Roles: []access.Role{access.Agent}},
		{UID: &admin, Roles: []access.Role{access.Agent, access.Admin}},
		{UID: &reader, Roles: []access.Role{access.Read}},
	}}
	if err := access.Validate("access", a.Grants); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		uid   uint32
		owner string
		want  bool
	}{
		{0, "kubernetes", true}, {77, "kubernetes", true}, {admin, "kubernetes", true}, {admin, "", true},
		{kubernetes, "kubernetes", true}, {kubernetes, "dra", true}, {kubernetes, "", false}, {kubernetes, "default", false},
		{other, "", true}, {other, "berthlet", true}, {other, "kubernetes", false}, {other, "dra", false},
		{reader, "", false},
	} {
		for method, req := range map[string]any{
			admissionv1.AdmissionService_Admit_FullMethodName:      &admissionv1.AdmitRequest{Owner: row.owner},
			admissionv1.AdmissionService_RemovePod_FullMethodName:  &admissionv1.RemovePodRequest{Owner: row.owner},
			admissionv1.AdmissionService_SyncPods_FullMethodName:   &admissionv1.SyncPodsRequest{Owner: row.owner},
			allocationv1.AllocationService_Allocate_FullMethodName: &allocationv1.AllocateRequest{Owner: row.owner},
		} {
			err := a.authorize(called(row.uid), method, req)
			if (err == nil) != row.want || err != nil && errdefs.ClassOf(err) != errdefs.PermissionDenied {
				t.Errorf("uid %d calls %s for %q: %v", row.uid, method, row.owner, err)
			}
		}
		all := a.authorize(called(row.uid), admissionv1.AdmissionService_SyncPods_FullMethodName,
			&admissionv1.SyncPodsRequest{AllOwners: true})
		if may := row.uid == 0 || row.uid == 77 || row.uid == admin; (all == nil) != may {
			t.Errorf("uid %d calls for all owners: %v", row.uid, all)
		}
	}
	// A call about a pod that is there is a call for its owner.
	a.OwnerOf = func(podUID, containerID string) (string, bool) {
		owner, ok := map[string]string{"k": "kubernetes", "id-k": "kubernetes", "b": "berthlet", "id-b": "berthlet"}[podUID+containerID]
		return owner, ok
	}
	for _, row := range []struct {
		uid  uint32
		name string
		want bool
	}{
		{0, "k", true}, {admin, "k", true}, {kubernetes, "k", true}, {other, "k", false},
		{0, "b", true}, {admin, "b", true}, {kubernetes, "b", false}, {other, "b", true},
		{kubernetes, "nobody", true}, {other, "nobody", true}, // and the call has none
	} {
		for method, req := range map[string]any{
			lifecyclev1.LifecycleService_PreStartContainer_FullMethodName: &lifecyclev1.PreStartContainerRequest{PodUid: row.name,
				ContainerId: "id-" + row.name},
			lifecyclev1.LifecycleService_PostStopContainer_FullMethodName: &lifecyclev1.PostStopContainerRequest{ContainerId: "id-" +
				row.name},
			lifecyclev1.LifecycleService_ReportMemory_FullMethodName: &lifecyclev1.ReportMemoryRequest{ContainerId: "id-" + row.name},
		} {
			if err := a.authorize(called(row.uid), method, req); (err == nil) != row.want || err != nil &&
				errdefs.ClassOf(err) != errdefs.PermissionDenied {
				t.Errorf("uid %d calls %s for pod %s: %v", row.uid, method, row.name, err)
			}
		}
	}
	// The role read shows the pods of all owners.
	if err := a.authorize(called(reader), allocationv1.AllocationService_List_FullMethodName,
		&allocationv1.ListRequest{Owner: "kubernetes"}); err != nil {
		t.Error(err)
	}
	for _, bad := range []access.Grant{
		{UID: &other, Roles: []access.Role{access.Read}, Owners: []string{"a"}},
		{UID: &other, Roles: []access.Role{access.Agent}, Owners: []string{"A"}},
		{UID: &other, Roles: []access.Role{access.Agent}, Owners: []string{""}},
	} {
		if err := access.Validate("access", []access.Grant{bad}); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
