package trust

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
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
// with a service with ProtectSystem=strict.
func ofConfigMap(path string) bool {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return false
	}
	at, trusted := "", false
	for _, m := range mounts {
		// Of two mounts at a place, the later one is seen.
		if len(m.Mountpoint) >= len(at) {
			at, trusted = m.Mountpoint, configMap.MatchString(m.Root) && slices.Contains(strings.Split(m.Options, ","), "ro")
		}
	}
	return trusted
}

// configMap is where a kubelet has the volumes of ConfigMaps.
var configMap = regexp.MustCompile(`(^|/)pods/[^/]+/volumes/kubernetes\.io~configmap/[^/]+$`)
