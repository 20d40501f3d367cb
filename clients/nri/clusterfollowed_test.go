package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/managers/cpuset"
)

// followed is a node whose kubelet decides, with a device plugin, and a berthd that observes it.
type followed struct {
	*kubernetes
	// root is the directory with the node's files below it; empty for the running node.
	root string
	// known are flags of berthctl for what a kubelet that has ended does not tell.
	known  []string
	plugin io.Writer
	rnd    *rand.Rand
	pods   int
	// container are the fields of a container but its name and resources. most is how many CPUs a container has at most.
	container string
	most      int
}

// follow starts the device plugin and berthd.
func (m *followed) follow(devices string) {
	m.t.Helper()
	plugin := exec.Command(filepath.Join(m.built, "plugin"), "-devices", devices)
	var err error
	if m.plugin, err = plugin.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	m.Start("plugin", plugin)
	m.Eventually("the node has devices", func() bool {
		text, err := m.Kubectl("get", "node", cluster.Node, "-o", `jsonpath={.status.allocatable.example\.com/gpu}`)
		return err == nil && text == strconv.Itoa(strings.Count(devices, "@"))
	})
	m.Start("berthd", exec.Command(filepath.Join(m.built, "berthd"), m.flag("--observe"), "--listen", m.socket,
		"--root-dir", m.Path("berthd")))
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Log(m.Log("berthd").String())
		}
	})
	m.Eventually("berthd answers", func() bool { _, err := m.berthctl("get", "node"); return err == nil })
}

// flag is a flag that names the node.
func (m *followed) flag(name string) string {
	if m.root == "" {
		return name
	}
	return name + "=" + m.root
}

// create creates pods, each one when the kubelet has decided about the one before: it does not tell the order of decisions in a second.
func (m *followed) create(count int) {
	m.t.Helper()
	for range count {
		m.pods++
		amounts := map[string]string{"cpu": "200m", "memory": "32Mi"}
		if m.rnd.IntN(3) > 0 {
			amounts["cpu"] = strconv.Itoa(1 + m.rnd.IntN(m.most))
		}
		if m.rnd.IntN(6) == 0 {
			amounts["example.com/gpu"] = strconv.Itoa(1 + m.rnd.IntN(2))
		}
		m.pod(fmt.Sprintf("p%d", m.pods), amounts, 1+m.rnd.IntN(2))
	}
}

// pod creates a pod, and waits until the kubelet has decided about it.
func (m *followed) pod(name string, limits map[string]string, containers int) {
	m.t.Helper()
	if err := m.Call(m.t.Context(), http.MethodPost, podsPath, m.manifest(name, limits, containers), nil); err != nil {
		m.t.Fatal(err)
	}
	m.Eventually("the kubelet has decided about pod "+name, func() bool {
		var p corev1.Pod
		return m.Call(m.t.Context(), http.MethodGet, podsPath+"/"+name, "", &p) == nil && p.Status.Phase != corev1.PodPending
	})
}

// manifest is a pod on the node, past the scheduler, with containers that have the same limits.
func (m *followed) manifest(name string, limits map[string]string, containers int) string {
	m.t.Helper()
	text, err := json.Marshal(limits)
	if err != nil {
		m.t.Fatal(err)
	}
	list := make([]string, containers)
	for i := range list {
		list[i] = fmt.Sprintf(`{"name": "c%d", %s, "imagePullPolicy": "Never", "resources": {"limits": %s}}`, i, m.container, text)
	}
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"nodeName": %q, "hostNetwork": true,
		"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0, "containers": [%s]}}`, name, cluster.Node,
		strings.Join(list, ", "))
}

// all are the pods by name.
func (m *followed) all() map[string]corev1.Pod {
	m.t.Helper()
	var list corev1.PodList
	if err := m.Get(&list, "pods"); err != nil {
		m.t.Fatal(err)
	}
	out := map[string]corev1.Pod{}
	for _, p := range list.Items {
		out[p.Name] = p
	}
	return out
}

// withdraw deletes pods, rejected ones, too.
func (m *followed) withdraw(count int) {
	m.t.Helper()
	names := slices.Sorted(maps.Keys(m.all()))
	m.rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if text, err := m.Kubectl(append([]string{"delete", "pod", "--grace-period=0", "--wait"}, names[:count]...)...); err != nil {
		m.t.Fatalf("%v: %s", err, text)
	}
}

// explained compares the explanations of rejected pods with the kubelet's reasons. For a minute, a later reading may give a better one.
func (m *followed) explained() {
	m.t.Helper()
	reasons := map[string]int{}
	for name, p := range m.all() {
		if p.Status.Phase != corev1.PodFailed {
			continue
		}
		reasons[p.Status.Reason]++
		text := ""
		defer m.logIfFailed(&text)
		m.Eventually(fmt.Sprintf("berth explains the rejection of %s (%s at %s): %s", name, p.Status.Reason, p.Status.StartTime,
			p.Status.Message), func() bool {
			var err error
			text, err = m.berthctl("explain", "default/"+name)
			return err == nil && strings.Contains(text, "the kubelet rejected it with "+p.Status.Reason) &&
				!strings.Contains(text, "where the reason is")
		})
	}
	m.t.Logf("rejections, each explained with the kubelet's reason: %v", reasons)
	if len(reasons) == 0 {
		m.t.Error("the kubelet has rejected no pod")
	}
}

// same compares what containers hold with podresources.
func (m *followed) same() {
	m.t.Helper()
	conn, err := grpc.NewClient("unix://"+m.Path("var/lib/kubelet/pod-resources/kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	difference := ""
	defer func() {
		if m.t.Failed() {
			m.t.Log(difference)
		}
	}()
	m.Eventually("berth has what podresources has", func() bool {
		list, err := podresourcesv1.NewPodResourcesListerClient(conn).List(m.t.Context(), &podresourcesv1.ListPodResourcesRequest{})
		if err != nil {
			m.t.Fatal(err)
		}
		want := map[string]string{}
		for _, p := range list.GetPodResources() {
			for _, c := range p.GetContainers() {
				var ids []string
				for _, d := range c.GetDevices() {
					ids = append(ids, d.GetDeviceIds()...)
				}
				slices.Sort(ids)
				var cpus cpuset.Builder
				for _, id := range c.GetCpuIds() {
					cpus.Add(int(id))
				}
				want[p.GetName()+"/"+c.GetName()] = cpus.Set().String() + " " + strings.Join(ids, ",")
			}
		}
		have := m.held()
		difference = fmt.Sprintf("podresources: %v\nberth: %v", want, have)
		return len(want) > 0 && maps.Equal(want, have)
	})
	m.t.Logf("%d containers", len(m.held()))
}

// held is what containers hold as berth says.
func (m *followed) held() map[string]string {
	m.t.Helper()
	text, err := m.berthctl("get", "containers", "-o", "json")
	var list struct {
		Items []struct {
			Name       string
			Containers []struct {
				ContainerName string
				ExclusiveCPUs bool
				CPUs          string
				Claims        []struct {
					Device struct{ Devices []struct{ ID string } }
				}
			}
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &list)
	}
	if err != nil {
		m.t.Fatalf("%v: %s", err, text)
	}
	out := map[string]string{}
	for _, p := range list.Items {
		for _, c := range p.Containers {
			var ids []string
			for _, claim := range c.Claims {
				for _, d := range claim.Device.Devices {
					ids = append(ids, d.ID)
				}
			}
			slices.Sort(ids)
			cpus := ""
			if c.ExclusiveCPUs {
				cpus = c.CPUs
			}
			out[p.Name+"/"+c.ContainerName] = cpus + " " + strings.Join(ids, ",")
		}
	}
	return out
}

// logIfFailed logs a text if the test has failed.
func (m *followed) logIfFailed(text *string) {
	if m.t.Failed() {
		m.t.Log(*text)
	}
}

// check returns what berthctl check finds, by the kind of finding.
func (m *followed) check() (text string, kinds []string) {
	m.t.Helper()
	args := append([]string{"check", "-o", "json", "--now", m.flag("--kubelet")}, m.known...)
	cmd := exec.Command(filepath.Join(m.built, "berthctl"), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := m.Spawn(cmd); err != nil {
		m.t.Fatal(err)
	}
	err := cmd.Wait() // with findings it fails
	var found struct{ Items []struct{ Check string } }
	if json.Unmarshal(out.Bytes(), &found) != nil {
		m.t.Fatalf("check: %v: %s%s", err, out.String(), errs.String())
	}
	for _, f := range found.Items {
		if f.Check != "scattered-cpus" { // that depends on the pods
			kinds = append(kinds, f.Check)
		}
	}
	return out.String() + errs.String(), slices.Compact(slices.Sorted(slices.Values(kinds)))
}

// healthy waits until nothing is wrong: the kubelet sets the CPUs of running containers from time to time.
func (m *followed) healthy() {
	m.t.Helper()
	text := ""
	defer m.logIfFailed(&text)
	m.Eventually("nothing is wrong", func() bool {
		var kinds []string
		text, kinds = m.check()
		return len(kinds) == 0
	})
}

// finds waits until a kind of finding is there.
func (m *followed) finds(fault, kind string) {
	m.t.Helper()
	text := ""
	defer m.logIfFailed(&text)
	m.Eventually(fmt.Sprintf("%s: there is %s", fault, kind), func() bool {
		var kinds []string
		text, kinds = m.check()
		return slices.Contains(kinds, kind)
	})
	m.t.Logf("%s: found as %s", fault, kind)
}

// planted are files, and what is written to them as a fault.
type planted struct {
	// widened has the CPUs of a cgroup with shared CPUs; all are the machine's.
	widened, all string
	// online and offline are a file and what makes a CPU offline.
	online, offline string
	// config is the kubelet's configuration; moved are other reserved CPUs.
	config, moved string
}

// faults plants five faults, one after the other, and takes them away again. The kubelet does not run afterwards.
func (m *followed) faults(p planted) {
	m.t.Helper()
	m.unhealthy()
	fault := func(what, want, file string, change func(text string) string) {
		m.t.Helper()
		before, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(change(string(before))), 0o644)
		}
		if err != nil {
			m.t.Fatal(err)
		}
		m.finds(what, want)
		if err := os.WriteFile(file, before, 0o644); err != nil {
			m.t.Fatal(err)
		}
		m.healthy()
	}
	fault("a cpuset that was widened by hand", "cpus-open", p.widened, func(string) string { return p.all + "\n" })
	fault("a reserved CPU that was moved", "reservation-changed", p.config, func(text string) string {
		return regexp.MustCompile(`("reservedSystemCPUs":)"[^"]*"`).ReplaceAllString(text, `${1}"`+p.moved+`"`)
	})
	fault("a CPU that is offline", "cpus-gone", p.online, func(string) string { return p.offline + "\n" })
	m.leftBehind()
}

// unhealthy has a device that a container holds fail.
func (m *followed) unhealthy() {
	m.t.Helper()
	for _, held := range m.held() {
		_, ids, _ := strings.Cut(held, " ")
		if ids == "" {
			continue
		}
		id, _, _ := strings.Cut(ids, ",")
		if _, err := fmt.Fprintln(m.plugin, "unhealthy", id); err != nil {
			m.t.Fatal(err)
		}
		m.finds("a device that has failed", "devices-not-registered")
		if _, err := fmt.Fprintln(m.plugin, "healthy", id); err != nil {
			m.t.Fatal(err)
		}
		m.healthy()
		return
	}
	m.t.Error("no container has a device")
}

// leftBehind ends the kubelet, and removes a pod with CPUs of its own from the API server: its entry in the state file is left behind.
func (m *followed) leftBehind() {
	m.t.Helper()
	state, err := os.ReadFile(m.Path("var/lib/kubelet/cpu_manager_state"))
	if err != nil {
		m.t.Fatal(err)
	}
	configuration, err := m.Kubectl("get", "--raw", "/api/v1/nodes/"+cluster.Node+"/proxy/configz")
	if err == nil {
		err = os.WriteFile(m.Path("configz.json"), []byte(configuration), 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	list := func() {
		m.t.Helper()
		text, err := m.Kubectl("get", "pods", "-A", "-o", "json")
		if err := errors.Join(err, os.WriteFile(m.Path("pods.json"), []byte(text), 0o600)); err != nil {
			m.t.Fatal(err)
		}
	}
	_ = m.End("kubelet", os.Kill) // its Pods API has all pods
	list()
	m.known = []string{"--pods", m.Path("pods.json"), "--configz", m.Path("configz.json")}
	m.healthy()
	for name, p := range m.all() {
		if strings.Contains(string(state), string(p.UID)) {
			if text, err := m.Kubectl("delete", "pod", name, "--force", "--grace-period=0"); err != nil {
				m.t.Fatalf("%v: %s", err, text)
			}
			list()
			m.finds("an entry of a pod that is gone", "cpus-left-behind")
			return
		}
	}
	m.t.Errorf("no pod has CPUs of its own in %s", state)
}
