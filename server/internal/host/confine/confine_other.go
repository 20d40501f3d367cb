//go:build !linux

package confine

import "strconv"

// The capabilities that berthd may need, of which there are none here.
const (
	Chown Capability = iota
	DACOverride
	Kill
	NetBindService
	SysNice
	SysPtrace
	SysResource
)

// String numbers a capability.
func (c Capability) String() string { return "CAP_" + strconv.Itoa(int(c)) }

// Enter is for Linux only.
func Enter(p Plan) (r Report, err error) {
	if p.DropCapabilities || p.Rules != nil || p.Filter {
		r.Missing = []string{"capabilities", "Landlock", "seccomp"}
	}
	return r, nil
}

// CloseOthers is for Linux only.
func CloseOthers() error { return nil }

// Effective is for Linux only.
func Effective() (Set, error) { return ^Set(0), nil }
