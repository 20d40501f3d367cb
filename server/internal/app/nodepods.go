package app

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/workload"
)

// podReader converts pods under a configuration.
func podReader(c config.Config) convert.Reader {
	return convert.Reader{Features: c.WorkloadFeatures(), Bounds: workload.Bounds{Containers: c.Limits.Containers}}
}

// NodePod converts a pod of a node that is only observed, without its claims on dynamic resources, with which berthd would refuse it. The
// error names the pod.
func NodePod(c config.Config, m *typesv1.Pod) (workload.Pod, error) {
	pod, err := podReader(c).Pod(WithoutClaims(m))
	if err != nil {
		err = fmt.Errorf("pod %s/%s: %w", m.GetMetadata().GetNamespace(), m.GetMetadata().GetName(), err)
	}
	return pod, err
}

// WithoutClaims returns a pod without its claims on dynamic resources.
func WithoutClaims(m *typesv1.Pod) *typesv1.Pod {
	if len(m.GetSpec().GetResourceClaims()) == 0 {
		return m
	}
	m = proto.CloneOf(m)
	m.Spec.ResourceClaims = nil
	for _, list := range [][]*typesv1.Container{m.Spec.GetInitContainers(), m.Spec.GetContainers()} {
		for _, c := range list {
			if c.Resources != nil {
				c.Resources.Claims = nil
			}
		}
	}
	return m
}
