package seccomp

import (
	"strconv"
	"strings"
	"sync"
)

// architecture is the kernel's identification of a call's architecture.
type architecture struct {
	// names are the names in profiles.
	name string
	// audit is the kernel's number (include/uapi/linux/audit.h).
	audit uint32
	calls func() map[string]uint32
	// foreign is the lowest number of another table's calls with the same architecture: x32. 0 if
	// there is none.
	foreign uint32
}

func table(text string) func() map[string]uint32 {
	return sync.OnceValue(func() map[string]uint32 {
		out := map[string]uint32{}
		for _, word := range strings.Fields(text) {
			name, digits, _ := strings.Cut(word, "=")
			number, err := strconv.ParseUint(digits, 10, 32)
			if err != nil {
				panic(err) // the text is a constant, and a test reads it
			}
			out[name] = uint32(number)
		}
		return out
	})
}

var (
	x8664   = architecture{name: "SCMP_ARCH_X86_64", audit: 0xc000003e, calls: table(x8664Calls), foreign: 1 << 30}
	x86     = architecture{name: "SCMP_ARCH_X86", audit: 0x40000003, calls: table(x86Calls)}
	aarch64 = architecture{name: "SCMP_ARCH_AARCH64", audit: 0xc00000b7, calls: table(aarch64Calls)}
)

// machines gives the architectures by Go's name of the machine's: its own first.
var machines = map[string][]architecture{
	"amd64": {x8664, x86},
	"arm64": {aarch64},
}

// known reports whether any table has a call.
func known(name string) bool {
	for _, a := range []architecture{x8664, x86, aarch64} {
		if _, ok := a.calls()[name]; ok {
			return true
		}
	}
	return false
}
