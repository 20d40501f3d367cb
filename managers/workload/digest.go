package workload

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/internal/jsontext"
)

// usualText is more room than the JSON of most pods takes.
const usualText = 512

// Digest gives a hexadecimal SHA-256 over the pod's identity and specification. Two pods with the same digest are the same
// request. Labels and annotations are left out: they may change while a pod lives and no decision rests on them. An absent
// map and an empty one are the same. Compare pods that both went through Defaulted, or neither.
func (p *Pod) Digest() (string, error) {
	spec := *p
	spec.Labels, spec.Annotations = nil, nil
	w := jsontext.New(usualText)
	spec.WriteJSON(w)
	if w.Err != nil {
		return "", errdefs.Internalf("digest of pod %s: %w", p, w.Err)
	}
	hash := sha256.Sum256(w.Out)
	return hex.EncodeToString(hash[:]), nil
}
