package nodetest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// kept are the files of cgroups that are made.
var kept = []string{
	"cgroup.procs", "cpuset.cpus.effective", "cpuset.mems.effective", "cpuset.effective_cpus", "cpuset.effective_mems", "cpu.max",
	"cpu.cfs_quota_us",
}

// RewriteKernel makes the cgroups and the processes of the recording in place of those in a directory. Recorded names of pods and
// containers become uids and the runtime's names again. Nothing is made if they were not recorded.
func (r Recording) RewriteKernel(t testing.TB, root string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(root, "sys/fs/cgroup")); err != nil {
		t.Fatal(err)
	}
	old, err := filepath.Glob(filepath.Join(root, "proc", "[0-9]*"))
	for _, dir := range old {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		t.Fatal(err)
	}
	var groups map[string]struct{ Files map[string]string }
	var processes []struct {
		Who         string
		Comm        string
		CPUs        string `json:"cpus_allowed"`
		InContainer bool   `json:"in_container"`
	}
	if _, err := os.Stat(filepath.Join(r.moment, "procs.json")); errors.Is(err, fs.ErrNotExist) {
		return
	}
	r.decode(t, filepath.Join(r.moment, "cgroups.json"), &groups)
	r.decode(t, filepath.Join(r.moment, "procs.json"), &processes)
	names, containers := r.names(t)
	pids := map[string][]string{}
	for i, p := range processes {
		if !p.InContainer {
			continue
		}
		id := fmt.Sprint(1000 + i)
		pids[p.Who] = append(pids[p.Who], id)
		write(t, filepath.Join(root, "proc", id, "task", id, "status"),
			fmt.Appendf(nil, "Name:\t%s\nCpus_allowed_list:\t%s\n", p.Comm, p.CPUs))
	}
	if len(groups) > 0 && groups["/"].Files["cpuset.cpus.effective"] != "" {
		write(t, filepath.Join(root, "sys/fs/cgroup/cgroup.controllers"), []byte(groups["/"].Files["cgroup.controllers"]+"\n"))
	}
	for _, at := range slices.Sorted(maps.Keys(groups)) {
		literal, who := literal(at, names, containers)
		if literal == "" || !strings.Contains(literal, "kubepods") {
			continue
		}
		files := groups[at].Files
		if who != "" {
			files = maps.Clone(files)
			files["cgroup.procs"] = strings.Join(pids[who], "\n")
		}
		for file, value := range files {
			tree := ""
			if _, v1 := files["cpuset.effective_cpus"]; v1 {
				tree = "cpuset"
				if strings.HasPrefix(file, "cpu.") {
					tree = "cpu"
				}
			}
			if slices.Contains(kept, file) {
				write(t, filepath.Join(root, "sys/fs/cgroup", tree, literal, file), []byte(value+"\n"))
			}
		}
	}
}

// names are the uids of pods and the runtime's names of POD/CONTAINER.
func (r Recording) names(t testing.TB) (uids, containers map[string]string) {
	t.Helper()
	type status struct{ Name, ContainerID string }
	var served []struct {
		Name, UID string
		Status    struct{ InitContainerStatuses, ContainerStatuses []status }
	}
	r.decode(t, filepath.Join(r.moment, "pod-status.json"), &served)
	uids, containers = map[string]string{}, map[string]string{}
	for _, p := range served {
		name := strings.TrimSuffix(p.Name, "-numavm") // the kubelet adds the node's name
		uids[name] = p.UID
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			_, containers[name+"/"+c.Name], _ = strings.Cut(c.ContainerID, "://")
		}
	}
	return uids, containers
}

// literal is the path of a recorded cgroup with real names, and which processes are in it; empty for one of a pod that is not known.
func literal(at string, uids, containers map[string]string) (name, who string) {
	parts, pod := strings.Split(at, "/"), ""
	for i, part := range parts {
		begin, rest, ok := strings.Cut(part, "POD=")
		if ok {
			var suffix string
			pod, suffix = strings.TrimSuffix(rest, ".slice"), rest[len(strings.TrimSuffix(rest, ".slice")):]
			uid := uids[pod]
			if uid == "" {
				return "", ""
			}
			if suffix != "" {
				uid = strings.ReplaceAll(uid, "-", "_")
			}
			parts[i] = begin + "pod" + uid + suffix
			continue
		}
		of, scope := strings.CutSuffix(part, ".scope")
		var id string
		switch container, named := strings.CutPrefix(of, "CTR="); {
		case pod == "":
			continue
		case named:
			if id, who = containers[pod+"/"+container], pod+"/"+container; id == "" {
				return "", ""
			}
		case of == "SANDBOX":
			id, who = strings.Repeat("0", 64), pod+"/SANDBOX"
		default:
			continue
		}
		if parts[i] = id; scope {
			parts[i] = "cri-containerd-" + id + ".scope"
		}
	}
	return path.Join(parts...), who
}
