package config

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxStateBytes limits the read part of a state file. The policy is at its beginning.
const maxStateBytes = 1 << 20

// kubeletState reports which resource managers of a node's kubelet are on, according to its state
// files. A missing or unreadable file is ignored.
func kubeletState(dir string) (notes []string) {
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
		notes = append(notes, fmt.Sprintf("%s: the kubelet's policy is %q, so the kubelet and berthd both assign the same resources; set %s to %s, remove the file, and restart the kubelet",
			path, state.PolicyName, manager.field, manager.off))
	}
	return notes
}
