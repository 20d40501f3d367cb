package podresources

import (
	"google.golang.org/grpc"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berthd/berth/managers/workload"
)

// Register registers both versions of the service, as a kubelet's socket has
// them.
func Register(s grpc.ServiceRegistrar, parts Parts, features workload.Features) {
	RegisterV1(s, parts, features)
	v1alpha1.RegisterPodResourcesListerServer(s, &alpha{ledger: parts.Ledger, counter: parts.Counter})
}

// ServiceV1 is the name of version 1.
const ServiceV1 = "v1.PodResourcesLister"

// RegisterV1 registers the service of v1 alone.
func RegisterV1(s grpc.ServiceRegistrar, parts Parts, features workload.Features) {
	v1.RegisterPodResourcesListerServer(s, New(parts, features))
}
