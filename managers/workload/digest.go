package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// Digest gives a hexadecimal SHA-256 over the pod's identity and specification. Two pods with the same digest are the same
// request. Labels and annotations are left out: they may change while a pod lives and no decision rests on them. So are the pods
// of a claim. External devices are left out, because they are no part of the specification. An absent
// map and an empty one are the same. Compare pods that both went through Defaulted, or neither.
func (p *Pod) Digest() (string, error) {
	spec := *p
	spec.Labels, spec.Annotations = nil, nil
	if p.ResourceClaim != nil {
		spec.ResourceClaim = p.ResourceClaim.For(nil)
	}
	if slices.ContainsFunc(p.Containers, func(c Container) bool { return c.ExternalDevices != nil }) {
		spec.Containers = slices.Clone(p.Containers)
		for i := range spec.Containers {
			spec.Containers[i].ExternalDevices = nil
		}
	}
	text, err := json.Marshal(&spec)
	if err != nil {
		return "", errdefs.Internalf("digest of pod %s: %w", p, err)
	}
	hash := sha256.Sum256(text)
	var digits [2 * sha256.Size]byte
	return string(hex.AppendEncode(digits[:0], hash[:])), nil
}
