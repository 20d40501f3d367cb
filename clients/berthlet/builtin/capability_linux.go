//go:build linux && cgo

package builtin

import (
	"fmt"
	"strings"

	"github.com/moby/sys/capability"
)

// knownCapabilities lists what this process can hand on: a set with more in it
// would be refused by the kernel.
func knownCapabilities() ([]string, error) {
	own, err := capability.NewPid2(0)
	if err == nil {
		err = own.Load()
	}
	if err != nil {
		return nil, fmt.Errorf("read the capabilities of this process: %w", err)
	}
	var out []string
	for _, c := range capability.ListKnown() {
		if own.Get(capability.PERMITTED, c) && own.Get(capability.BOUNDING, c) {
			out = append(out, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	return out, nil
}
