package kubelet

import (
	"encoding/json"

	"github.com/berthd/berth/managers/errdefs"
)

// sealed are the keys of a checkpoint that has its content as text: format 4 of the CPU manager and
// format 3 of the memory manager. The other keys of the file are a copy for older kubelets, which a
// kubelet since 1.37 does not read.
type sealed struct {
	Data         *string `json:"data,omitempty"`
	DataChecksum *uint64 `json:"dataChecksum,omitempty"`
}

// isSealed reports whether a kubelet reads the content from the text.
func (s sealed) isSealed() bool {
	return s.Data != nil && *s.Data != "" || s.DataChecksum != nil && *s.DataChecksum != 0
}

// open reads the content into a value. Errors are of class Invalid.
func (s sealed) open(content any) error {
	var data string
	if s.Data != nil {
		data = *s.Data
	}
	var sum uint64
	if s.DataChecksum != nil {
		sum = *s.DataChecksum
	}
	if want := checksum("(string)" + data); sum != want {
		return errdefs.Invalidf("checkpoint is corrupted: dataChecksum is %d, the checksum of data is %d", sum, want)
	}
	if err := json.Unmarshal([]byte(data), content); err != nil {
		return errdefs.Invalidf("data: %w", misread(err))
	}
	return nil
}

// seal writes a value as text.
func seal(content any) (sealed, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return sealed{}, err
	}
	return sealed{Data: new(string(text)), DataChecksum: new(checksum("(string)" + string(text)))}, nil
}
