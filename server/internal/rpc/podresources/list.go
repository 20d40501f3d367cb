package podresources

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/wire"
)

// list is an answer to List, encoded. Readers poll, and most of the time nothing has changed.
type list struct {
	view *ledger.View
	// pods are the field of the answer with the pods.
	pods    []byte
	missing map[string]bool
}

// largestList is how many bytes of an answer are kept for the next call.
const largestList = 8 << 20

// podsField is the number of the pods in an answer.
var podsField = (*v1.ListPodResourcesResponse)(nil).ProtoReflect().Descriptor().Fields().ByName("pod_resources").Number()

// list returns the answer for a view.
func (s *service) list(view *ledger.View) (*list, error) {
	if l := s.listed.Load(); l != nil && (l.view == view || l.view.SameFacts(view)) {
		return l, nil
	}
	l := &list{view: view, missing: map[string]bool{}}
	for _, p := range active(view) {
		text, err := wire.Encode(s.pod(p, view.Machine().NodeMask(), l.missing))
		if err != nil {
			return nil, fmt.Errorf("encode pod %s of namespace %s: %w", p.name, p.namespace, err)
		}
		l.pods = protowire.AppendBytes(protowire.AppendTag(l.pods, podsField, protowire.BytesType), text)
	}
	if len(l.pods) <= largestList {
		s.listed.Store(l)
	}
	return l, nil
}

// answer returns the message. To a client its bytes are pods like any others.
func (l *list) answer() *v1.ListPodResourcesResponse {
	out := &v1.ListPodResourcesResponse{}
	out.ProtoReflect().SetUnknown(l.pods)
	return out
}
