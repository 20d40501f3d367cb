package kubelet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// TestHostileStateFiles: files that stand for more than they have, are nested deeper than any
// real one, or repeat a field are refused with an error of their own, by every reader.
func TestHostileStateFiles(t *testing.T) {
	t.Parallel()
	const deep = 1 << 20
	files := map[string]string{
		"deep lists":       strings.Repeat("[", deep),
		"deep objects":     strings.Repeat(`{"entries":`, deep),
		"deep and closed":  `{"entries":` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + "}",
		"a large number":   `{"checksum":` + strings.Repeat("9", deep) + "}",
		"no text":          "\xff\xfe\x00",
		"a zero byte":      "{}\x00",
		"two documents":    `{"policyName":"none","checksum":1}{"policyName":"static"}`,
		"another checksum": `{"policyName":"none","checksum":18446744073709551615}`,
	}
	for name, text := range files {
		for reader, parse := range map[string]func([]byte) error{
			"CPUs":    func(b []byte) error { _, err := ParseCPU(b, nil); return err },
			"memory":  func(b []byte) error { _, err := ParseMemory(b); return err },
			"devices": func(b []byte) error { _, err := ParseDevice(b); return err },
			"claims":  func(b []byte) error { _, err := ParseClaims(b); return err },
			"amounts": CheckAmounts,
		} {
			err := parse([]byte(text))
			if class := errdefs.ClassOf(err); err == nil || class != errdefs.Invalid && class != errdefs.Precondition {
				t.Errorf("%s, read as %s: %.200v", name, reader, err)
			} else if len(err.Error()) > 1000 {
				t.Errorf("%s, read as %s: the error has %d bytes", name, reader, len(err.Error()))
			}
		}
	}
}

// TestHostileCPULists: a few bytes do not become more CPUs than a machine may have.
func TestHostileCPULists(t *testing.T) {
	t.Parallel()
	for _, list := range []string{
		"0-4294967295", "0-18446744073709551615", "-1", "0-", "5-1", "0,,1", "1-2-3", "0-999999999", " 0", "0x1",
		strings.Repeat("0,", 1<<20) + "x",
	} {
		if _, err := ParseCPU(fmt.Appendf(nil, `{"policyName":"static","defaultCpuSet":%q,"checksum":0}`, list), nil); err == nil {
			t.Errorf("%.40s is accepted", list)
		} else if len(err.Error()) > 1000 {
			t.Errorf("%.40s: the error has %d bytes", list, len(err.Error()))
		}
	}
}
