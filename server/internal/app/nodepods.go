package app

import (
	"fmt"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/workload"
)

// podReader converts pods under a configuration.
func podReader(c config.Config) convert.Reader {
	return convert.Reader{Features: c.WorkloadFeatures(), Bounds: workload.Bounds{Containers: c.Limits.Containers}}
}

// NodePods converts the pods of a node that is only observed.
func NodePods(c config.Config, pods []Adopted) ([]workload.Pod, error) {
	read := podReader(c)
	out := make([]workload.Pod, len(pods))
	for i, p := range pods {
		var err error
		if out[i], err = read.Pod(p.Pod); err != nil {
			return nil, fmt.Errorf("pod %s/%s: %w", p.Pod.GetMetadata().GetNamespace(), p.Pod.GetMetadata().GetName(), err)
		}
	}
	return out, nil
}
