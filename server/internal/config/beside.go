package config

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/socket"
)

// maxStateBytes limits the read part of a state file. The policy is at its beginning.
const maxStateBytes = 1 << 20

// kubeletState reports which resource managers of a node's kubelet are on, according to its state files. A missing or unreadable
// file is ignored. While the kubelet runs, a manager that is on is an error: the kubelet and berthd would assign the same resources.
// The files of a kubelet that does not run may be there to be imported.
func kubeletState(dir string) (notes []string, err error) {
	var conflicts errdefs.Violations
	runs := socket.Unserved(filepath.Join(dir, "pod-resources", "kubelet.sock")) != nil
	for _, manager := range []struct{ name, field, off string }{
		{"cpu_manager_state", "cpuManagerPolicy", "none"},
		{"memory_manager_state", "memoryManagerPolicy", "None"},
	} {
		path := filepath.Join(dir, manager.name)
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer ends at once
		if err != nil {
			continue
		}
		var state struct{ PolicyName string }
		err = json.NewDecoder(io.LimitReader(f, maxStateBytes)).Decode(&state)
		_ = f.Close()
		if err != nil || state.PolicyName == "" || strings.EqualFold(state.PolicyName, manager.off) {
			continue
		}
		text := fmt.Sprintf("the kubelet's policy is %q, so the kubelet and berthd would both assign the same resources; set %s to %s, stop the kubelet, remove the file, and start the kubelet",
			state.PolicyName, manager.field, manager.off)
		if runs {
			conflicts.Addf(path, "%s", text)
		} else {
			notes = append(notes, path+": "+text)
		}
	}
	return notes, conflicts.Err("the kubelet's state beside berthd")
}
