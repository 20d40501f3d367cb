package trust

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// owner returns the user that a file belongs to.
func owner(info fs.FileInfo) (uid int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

func group(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Gid)
	}
	return -1
}

// Removed reports whether a directory has no name any more. A mount still leads to it.
func Removed(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 0
}

// ofConfigMap reports whether a directory is in the volume of a ConfigMap, mounted read-only. The kubelet gives its directory the mode
// 0777, beneath one that only root can pass. That a mount is read-only alone says nothing: others have the same directory without it, as
// beside a service with ProtectSystem=strict.
func ofConfigMap(path string) bool {
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false
	}
	path = escaped.Replace(path)
	at, trusted := "", false
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line) // proc_pid_mountinfo(5): the mount, its parent, the device, the mounted directory, where, the options
		// Of two mounts at a place, the later one is seen.
		if len(f) > 5 && len(f[4]) >= len(at) && (path == f[4] || strings.HasPrefix(path, strings.TrimSuffix(f[4], "/")+"/")) {
			at, trusted = f[4], configMap.MatchString(f[3]) && slices.Contains(strings.Split(f[5], ","), "ro")
		}
	}
	return trusted
}

// escaped makes a path as mountinfo has it.
var escaped = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)

// configMap is where a kubelet has the volumes of ConfigMaps.
var configMap = regexp.MustCompile(`(^|/)pods/[^/]+/volumes/kubernetes\.io~configmap/[^/]+$`)
