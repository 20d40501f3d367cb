package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthlet/container"
)

const head = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, uid: NAME-uid}
spec:
`

func pod(name, spec string) string { return strings.ReplaceAll(head, "NAME", name) + spec }

func web(name string) string {
	return pod(name, "  containers: [{name: main, image: i, command: [/p, wait]}]\n")
}

func TestCallsInOrder(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(pod("a", `
  initContainers: [{name: first, image: i, command: [/p, exit, "0"]}]
  containers: [{name: main, image: i, command: [/p, wait]}]
`))
		h.expect("a", "Running, first#0 Completed 0, main#0 running")
		first, main := h.id("a", "first"), h.id("a", "main")
		h.want()
		want := []string{
			"Sync", "Knows a-uid", "Admit a-uid",
			"Allocate a-uid first", "PreStart a-uid first " + first, "PostStop " + first,
			"Allocate a-uid main", "PreStart a-uid main " + main, "PostStop " + main, "Remove a-uid",
		}
		if got := h.node.said(); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		wantRuntime := []string{"Create first#0", "Start first#0", "Create main#0", "Start main#0", "Signal terminated main#0",
			"Remove first#0", "Remove main#0"}
		if got := h.runtime.Calls(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(wantRuntime))) {
			t.Errorf("got  %q\nwant %q", got, wantRuntime)
		}
		h.empty()
		if entries, err := os.ReadDir(filepath.Join(h.dir, "pods")); err != nil || len(entries) > 0 {
			t.Errorf("records: %v, %v", entries, err)
		}
	})
}

// TestSecured passes on a manifest's users, groups and rights of a container, and what it may
// do.
func TestSecured(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.features = container.Features{AppArmor: true, SELinux: true}
		h.stop()
		h.begin()
		h.want(pod("a", `
  securityContext: {runAsNonRoot: true, runAsUser: 5, supplementalGroups: [7], supplementalGroupsPolicy: Strict,
    fsGroup: 9, sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}]}
  containers:
  - name: main
    image: i
    command: [/p, wait]
    securityContext: {seccompProfile: {type: Localhost, localhostProfile: d/p.json},
      appArmorProfile: {type: Localhost, localhostProfile: web}, seLinuxOptions: {type: t, level: l}}
  - {name: free, image: i, command: [/p, wait], securityContext: {privileged: true}}
`))
		got, _ := h.runtime.Spec(h.id("a", "main"))
		const own = "spec.containers[0].securityContext."
		want := container.Security{
			NonRoot: "spec.securityContext.runAsNonRoot", Groups: []int64{7, 9}, StrictGroups: true,
			Seccomp:  container.Profile{Kind: container.Localhost, Localhost: h.dir + "/seccomp/d/p.json", Field: own + "seccompProfile"},
			AppArmor: container.Profile{Kind: container.Localhost, Localhost: "web", Field: own + "appArmorProfile"},
			SELinux:  &container.SELinux{Type: "t", Level: "l"}, Sysctls: map[string]string{"net.ipv4.tcp_syncookies": "1"},
		}
		if got.NonRoot != want.NonRoot || !slices.Equal(got.Groups, want.Groups) || got.StrictGroups != want.StrictGroups ||
			got.Seccomp != want.Seccomp ||
			got.AppArmor != want.AppArmor || got.SELinux == nil || *got.SELinux != *want.SELinux || !maps.Equal(got.Sysctls, want.Sysctls) {
			t.Errorf("got %+v", got)
		}
		shared, _ := h.runtime.Pod("a-uid")
		if !shared.Privileged || !shared.StrictGroups || !slices.Equal(shared.Groups, want.Groups) ||
			!maps.Equal(shared.Sysctls, want.Sysctls) {
			t.Errorf("the pod is %+v", shared)
		}
	})
}

// TestUnenforced refuses, by field, what the runtime or the machine does not have.
func TestUnenforced(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(pod("a", `
  securityContext: {appArmorProfile: {type: RuntimeDefault}}
  containers:
  - {name: x, image: i, securityContext: {seLinuxOptions: {level: s0}}}
  - {name: z, image: i}
`), pod("b", "  containers: [{name: main, image: i, command: [/p, wait], securityContext: {appArmorProfile: {type: Unconfined}}}]\n"))
		p := h.pod("a")
		want := []string{"spec.securityContext.appArmorProfile: ", "spec.containers[0].securityContext.seLinuxOptions: "}
		if p.Phase != "Failed" || p.Reason != "Unsupported" || strings.Count(p.Message, "appArmorProfile") != 1 {
			t.Errorf("%+v", p)
		}
		for _, w := range want {
			if !strings.Contains(p.Message, w) {
				t.Errorf("message %q, want %q", p.Message, w)
			}
		}
		h.expect("b", "Running, main#0 running")
	})
}

func TestWhatAContainerIsMadeOf(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(pod("a", `
  hostIPC: true
  volumes: [{name: own, emptyDir: {}}, {name: theirs, hostPath: {path: /srv}}]
  containers:
  - name: main
    image: img
    imagePullPolicy: Never
    command: [/p, wait]
    args: ["$(MINE)", "$(OTHER)"]
    env: [{name: MINE, value: pod}]
    workingDir: /w
    volumeMounts: [{name: own, mountPath: /own}, {name: theirs, mountPath: /theirs, subPath: sub, readOnly: true}]
    securityContext: {runAsUser: 5, privileged: true, readOnlyRootFilesystem: true,
      allowPrivilegeEscalation: false, capabilities: {add: [NET_ADMIN], drop: [ALL]}}
`))
		got, ok := h.runtime.Spec(h.id("a", "main"))
		if !ok {
			t.Fatal("no container")
		}
		five := int64(5)
		want := container.Spec{
			ID: h.id("a", "main"), PodUID: "a-uid", Name: "main", Image: "img", Pull: container.PullNever,
			Command: []string{"/p", "wait"}, Args: []string{"pod", "$(OTHER)"}, Dir: "/w",
			Env: []container.Variable{{Name: "DEVICE", Value: "d0"}, {Name: "MINE", Value: "plugin"}, {Name: "MINE", Value: "pod"}},
			Security: container.Security{
				User: &five, Privileged: true, ReadOnlyRoot: true, NoNewPrivileges: true,
				Add: []string{"NET_ADMIN"}, Drop: []string{"ALL"},
			},
			HostNamespaces: container.HostNamespaces{HostIPC: true},
			Mounts: []container.Mount{
				{Path: "/own", HostPath: h.dir + "/pods/a-uid/volumes/own"},
				{Path: "/theirs", HostPath: "/pinned/srv/sub", ReadOnly: true},
				{Path: "/lib/d", HostPath: "/host/d", ReadOnly: true},
			},
			Devices: []container.Device{{Path: "/dev/d", HostPath: "/dev/null", Permissions: "rw"}},
			Cgroup: container.Cgroup{
				CgroupPath: "/pods/a-uid/main", CgroupParent: "/pods/a-uid", OOMScoreAdj: 7,
				Resources: container.Resources{
					CPUs: "3", Mems: "1", CPUShares: 5, CPUQuotaUS: -1, CPUPeriodUS: 6, MemoryBytes: 8, MemorySwapBytes: 9,
					HugePages: []container.HugePages{{Size: "2MB", Bytes: 10}}, Unified: map[string]string{"memory.min": "1"},
				},
				StartCPUs: []string{"0", "3"},
			},
			LogRoot: h.dir + "/logs", LogPath: h.dir + "/logs/default_a_a-uid/main/0.log",
		}
		if fmt.Sprintf("%+v", got.User) == "" || *got.User != *want.User {
			t.Errorf("user %v", got.User)
		}
		got.User, want.User = nil, nil
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if _, err := os.Stat(want.Mounts[0].HostPath); err != nil {
			t.Error(err)
		}
	})
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	rejected := &admissionv1.AdmitResponse{Verdict: admissionv1.Verdict_VERDICT_REJECTED, Reason: "TopologyAffinityError", Message: "no"}
	t.Run("rejected", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.node.answers = []*admissionv1.AdmitResponse{rejected}
			h.want(web("a"))
			if p := h.pod("a"); p.Phase != "Failed" || p.Reason != "TopologyAffinityError" || p.Message != "Pod was rejected: no" {
				t.Errorf("%+v", p)
			}
			h.pass(time.Hour)
			if got := h.node.said("Admit"); len(got) != 1 {
				t.Errorf("asked %d times", len(got))
			}
			h.want()
			h.empty()
		})
	})
	t.Run("deferred", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.node.answers = []*admissionv1.AdmitResponse{deferred("PluginAway", 7*time.Second)}
			h.want(web("a"))
			if p := h.pod("a"); p.Phase != "Pending" || p.Reason != "PluginAway" || p.Message != "not now" {
				t.Errorf("%+v", p)
			}
			h.pass(7*time.Second - time.Millisecond)
			if got := h.node.said("Admit"); len(got) != 1 {
				t.Errorf("asked %d times before the time", len(got))
			}
			h.pass(time.Millisecond)
			h.expect("a", "Running, main#0 running")
		})
	})
	t.Run("ledger uncertain", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.node.answers = []*admissionv1.AdmitResponse{deferred("StateUncertain", time.Second)}
			h.want(web("a"))
			h.pass(time.Second)
			h.expect("a", "Running, main#0 running")
			if got := h.node.said("Sync"); !slices.Equal(got, []string{"Sync", "Sync a-uid"}) {
				t.Errorf("%q", got)
			}
		})
	})
	t.Run("state uncertain, without deferrals", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			synced := 0
			h.node.fail = func(call string) error {
				if strings.HasPrefix(call, "Sync") {
					synced++
				}
				if strings.HasPrefix(call, "Admit") && synced < 2 {
					return &berth.Error{Code: codes.Unavailable, VerdictReason: berth.StateUncertain, Message: "not now"}
				}
				return nil
			}
			h.want(web("a"))
			h.pass(time.Minute)
			h.expect("a", "Running, main#0 running")
			if got := h.node.said("Sync"); len(got) < 2 || got[0] != "Sync" || got[1] != "Sync a-uid" {
				t.Errorf("%q", got)
			}
		})
	})
	t.Run("invalid", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.node.fail = failing("Admit", &berth.Error{Code: codes.InvalidArgument, Message: "pod.spec: wrong"})
			h.want(web("a"))
			if p := h.pod("a"); p.Phase != "Failed" || p.Reason != "Invalid" || p.Message != "pod.spec: wrong" {
				t.Errorf("%+v", p)
			}
		})
	})
	t.Run("another pod of the same uid", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.node.fail = untilRemoved(&berth.Error{Code: codes.FailedPrecondition, Message: "admitted with another spec"})
			h.want(web("a"))
			h.pass(time.Second)
			h.expect("a", "Running, main#0 running")
		})
	})
	t.Run("the same pod after a resize", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.want(web("a"))
			h.expect("a", "Running, main#0 running")
			h.node.fail = failing("Admit", &berth.Error{Code: codes.FailedPrecondition,
				Reason: errorsv1.ErrorReason_POD_SPEC_DIFFERS.String()})
			h.node.restart(false)
			h.pass(time.Minute)
			h.runtime.Exit(h.id("a", "main"), 1)
			h.pass(time.Minute)
			h.expect("a", "Running, main#1 running")
			if got := h.node.said("Remove"); len(got) != 0 {
				t.Errorf("%q", got)
			}
		})
	})
	t.Run("the same pod after a resize before its first container", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.runtime.FailWith(withoutImage)
			h.want(web("a"))
			h.expect("a", "Pending, main#0 CreateContainerError")
			h.node.fail = failing("Admit", &berth.Error{Code: codes.FailedPrecondition,
				Reason: errorsv1.ErrorReason_POD_SPEC_DIFFERS.String()})
			h.node.restart(false)
			h.pass(time.Minute)
			h.stop()
			h.begin()
			h.want(web("a"))
			h.runtime.FailWith(nil)
			h.pass(10 * time.Minute)
			h.expect("a", "Running, main#0 running")
			if got := h.node.said("Remove"); len(got) != 0 {
				t.Errorf("%q", got)
			}
		})
	})
	t.Run("a pod that was resized before its first container, and that berthd has lost", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.runtime.FailWith(withoutImage)
			h.want(web("a"))
			h.node.fail = untilRemoved(&berth.Error{Code: codes.FailedPrecondition, Reason: errorsv1.ErrorReason_POD_SPEC_DIFFERS.String()})
			h.node.restart(true)
			h.pass(time.Minute)
			h.runtime.FailWith(nil)
			h.pass(10 * time.Minute)
			h.expect("a", "Running, main#0 running")
		})
	})
	t.Run("what an agent cannot give", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.want(pod("a", "  volumes: [{name: v, secret: {secretName: s}}]\n  containers: [{name: main, image: i}]\n"))
			if p := h.pod("a"); p.Phase != "Failed" || p.Reason != "Unsupported" {
				t.Errorf("%+v", p)
			}
			if got := h.node.said("Admit"); len(got) != 0 {
				t.Errorf("%q", got)
			}
		})
	})
}

// failing lets the calls of one method fail.
func failing(method string, err error) func(string) error {
	return func(call string) error {
		if first, _, _ := strings.Cut(call, " "); first == method {
			return err
		}
		return nil
	}
}

// untilRemoved lets admissions fail until the pod is removed.
func untilRemoved(err error) func(string) error {
	removed, fails := false, failing("Admit", err)
	return func(call string) error {
		if removed = removed || strings.HasPrefix(call, "Remove"); removed {
			return nil
		}
		return fails(call)
	}
}

// withoutImage lets containers fail to be created.
func withoutImage(call, _ string) error {
	if call == "Create" {
		return errors.New("the image is not here yet")
	}
	return nil
}

func TestCrashLoop(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(pod("a", `  containers: [{name: main, image: i, command: [/p, exit, "3"]}]`+"\n"))
		h.expect("a", "Running, main#1 CrashLoopBackOff")
		last := h.pod("a").ContainerStatuses[0].LastState
		if last == nil || last.Terminated == nil || last.Terminated.ExitCode != 3 || last.Terminated.Reason != "Error" {
			t.Errorf("last state: %+v", last)
		}
		h.pass(10 * time.Second)
		h.expect("a", "Running, main#2 CrashLoopBackOff")
		h.pass(20 * time.Second)
		h.expect("a", "Running, main#3 CrashLoopBackOff")
		if got, want := len(h.node.said("PostStop")), 4; got != want {
			t.Errorf("%d ends, want %d", got, want)
		}
		h.want()
		h.empty()
	})
}

func TestTroubleIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"Allocate", "PreStart", "Knows", "Admit", "Remove", "PostStop"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			within(t, func(h *fixture) {
				down := true
				h.node.fail = func(call string) error {
					if first, _, _ := strings.Cut(call, " "); down && first == method {
						return &berth.Error{Code: codes.Unavailable, Message: "berthd is away"}
					}
					return nil
				}
				h.want(web("a"))
				h.pass(time.Minute)
				h.node.mu.Lock()
				down = method == "Remove" || method == "PostStop"
				h.node.mu.Unlock()
				h.pass(time.Minute)
				h.expect("a", "Running, main#0 running")
				h.want()
				h.pass(time.Minute)
				h.node.mu.Lock()
				down = false
				h.node.mu.Unlock()
				h.pass(time.Minute)
				// berthd forgets containers with their pod.
				clear(h.node.bound)
				h.empty()
			})
		})
	}
	t.Run("Create", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.runtime.FailWith(func(call, name string) error {
				if call == "Create" {
					return errors.New("no such image")
				}
				return nil
			})
			h.want(web("a"))
			if w := h.pod("a").ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerError" ||
				w.Message != "no such image" {
				t.Errorf("%+v", h.pod("a"))
			}
			h.runtime.FailWith(nil)
			h.pass(time.Minute)
			h.expect("a", "Running, main#0 running")
		})
	})
}

func TestGrace(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(pod("a", "  terminationGracePeriodSeconds: 5\n  containers: [{name: main, image: i, command: [/p, stubborn]}]\n"))
		h.want()
		if p := h.pod("a"); p.DeletionTimestamp == nil || p.ContainerStatuses[0].State.Running == nil {
			t.Errorf("%+v", p)
		}
		h.pass(5*time.Second - time.Millisecond)
		h.expect("a", "Running, main#0 running")
		h.pass(time.Millisecond)
		h.empty()
		if got := h.runtime.Calls(); !slices.Contains(got, "Signal killed main#0") {
			t.Errorf("%q", got)
		}
	})
}

// TestPlaceIsGivenBackBeforeTheSandbox: what a pod holds is free when its last process has
// gone, however long the runtime takes to close its sandbox.
func TestPlaceIsGivenBackBeforeTheSandbox(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(web("a"))
		h.expect("a", "Running, main#0 running")
		var stuck atomic.Bool
		stuck.Store(true)
		h.runtime.FailWith(func(method, _ string) error {
			if stuck.Load() && method == "Close" {
				return errors.New("no")
			}
			return nil
		})
		h.want()
		if got := h.node.said("Remove"); !slices.Equal(got, []string{"Remove a-uid"}) {
			t.Errorf("%q while the sandbox is open", got)
		}
		stuck.Store(false)
		h.pass(time.Minute)
		h.empty()
		if got := h.node.said("Remove"); len(got) != 1 {
			t.Errorf("%q", got)
		}
	})
}

func TestManifestChanges(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(web("a"))
		before := h.pod("a").StartTime
		h.pass(time.Second)
		h.want(web("a"))
		if got := h.pod("a").StartTime; !got.Equal(*before) {
			t.Error("the same manifest began another pod")
		}
		h.want(strings.Replace(web("a"), "image: i", "image: j", 1))
		h.expect("a", "Running, main#0 running")
		if spec, _ := h.runtime.Spec(h.id("a", "main")); spec.Image != "j" {
			t.Errorf("image %q", spec.Image)
		}
		if got := h.node.said("Remove"); len(got) != 1 {
			t.Errorf("%q", got)
		}
	})
}

func TestAgentComesBack(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(web("a"), web("b"),
			pod("job", "  restartPolicy: Never\n  containers: [{name: main, image: i, command: [/p, exit, \"0\"]}]\n"))
		a := h.id("a", "main")
		h.stop()
		// While it is away one container ends, and a manifest goes.
		h.runtime.Exit(h.id("b", "main"), 1)
		h.begin()
		h.want(web("a"), web("b"),
			pod("job", "  restartPolicy: Never\n  containers: [{name: main, image: i, command: [/p, exit, \"0\"]}]\n"))
		h.expect("a", "Running, main#0 running")
		h.expect("b", "Running, main#1 running")
		h.expect("job", "Succeeded, main#0 Completed 0")
		if got := h.id("a", "main"); got != a {
			t.Errorf("container %s became %s", a, got)
		}
		if got := h.node.said("Sync"); !slices.Equal(got, []string{"Sync", "Sync a-uid,b-uid"}) {
			t.Errorf("%q", got)
		}
		// Nothing is started or bound twice.
		if got := slices.Compact(slices.Sorted(slices.Values(h.node.said("PreStart")))); len(got) != len(h.node.said("PreStart")) {
			t.Errorf("%q", h.node.said("PreStart"))
		}
		h.stop()
		h.begin()
		h.want(web("a"))
		if got := h.agent.Status().Pods; len(got) != 1 || got[0].Name != "a" {
			t.Errorf("%+v", got)
		}
	})
}

// TestNothingIsEndedBeforeTheManifestsAreRead: a folder that cannot be read at
// first is no reason to end what runs.
func TestNothingIsEndedBeforeTheManifestsAreRead(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(web("a"))
		h.stop()
		h.begin()
		h.pass(time.Hour)
		h.expect("a", "Running, main#0 running")
		// Nor is one that was read in part.
		h.agent.Want(decode(t, web("b")), false)
		synctest.Wait()
		h.expect("a", "Running, main#0 running")
		h.expect("b", "Running, main#0 running")
		h.want(web("b"))
		if got := h.agent.Status().Pods; len(got) != 1 || got[0].Name != "b" {
			t.Errorf("%+v", got)
		}
	})
}

// TestManifestThatWentEndsItsPod: a file that was never read is no reason to end a
// pod whose own file was read, and is gone.
func TestManifestThatWentEndsItsPod(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(web("a"), web("b"), web("c"))
		h.stop()
		h.begin()
		h.agent.Want(decode(t, web("a"), web("b")), false)
		synctest.Wait()
		h.agent.Want(decode(t, web("b")), false)
		synctest.Wait()
		h.pass(time.Hour)
		h.expect("b", "Running, main#0 running")
		h.expect("c", "Running, main#0 running")
		if got := h.agent.Status().Pods; len(got) != 2 {
			t.Errorf("%+v", got)
		}
		h.agent.Want(decode(t, web("a"), web("b")), false)
		synctest.Wait()
		h.expect("a", "Running, main#0 running")
	})
}

// TestUnknownPodsAreRemoved: a container of a pod that the agent never had goes at once.
func TestUnknownPodsAreRemoved(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(web("a"))
		h.stop()
		if err := os.RemoveAll(filepath.Join(h.dir, "pods", "a-uid")); err != nil {
			t.Fatal(err)
		}
		h.begin()
		h.empty()
	})
}

// TestRecordsThatAreNotToBeHad: a pod whose record is damaged, gone or cannot be read now lives on and is among the living,
// until the manifests show whether it has one. A pod with a manifest keeps its containers.
func TestRecordsThatAreNotToBeHad(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		spoil func(t *testing.T, record string)
		// mend makes the record readable again; nil where that is impossible.
		mend  func(t *testing.T, record string)
		aside int
	}{
		"damaged": {func(t *testing.T, record string) { writeRecord(t, record, "{") }, nil, 1},
		"another pod's": {func(t *testing.T, record string) {
			text, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			writeRecord(t, record, strings.ReplaceAll(string(text), "a-uid", "b-uid"))
		}, nil, 1},
		"no manifest": {func(t *testing.T, record string) { writeRecord(t, record, "{}") }, nil, 1},
		"gone": {func(t *testing.T, record string) {
			if err := os.Remove(record); err != nil {
				t.Fatal(err)
			}
		}, nil, 0},
		"not to be read": {func(t *testing.T, record string) {
			if err := errors.Join(os.Rename(record, record+".kept"), os.Symlink(filepath.Base(record), record)); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, record string) {
			if err := os.Rename(record+".kept", record); err != nil {
				t.Fatal(err)
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			within(t, func(h *fixture) {
				h.want(web("a"))
				before := h.id("a", "main")
				record := filepath.Join(h.dir, "pods", "a-uid", "pod.json")
				comesBack := func(manifests ...string) {
					t.Helper()
					h.stop()
					row.spoil(t, record)
					h.begin()
					h.pass(time.Hour)
					runs(h, before)
					h.node.restart(false)
					h.pass(time.Hour)
					if got := h.node.said("Sync"); got[len(got)-1] != "Sync a-uid" || got[len(got)-2] != "Sync a-uid" {
						t.Errorf("berthd was told %q", got)
					}
					h.want(manifests...)
					if row.mend != nil {
						h.pass(time.Hour)
						runs(h, before)
						row.mend(t, record)
						h.pass(time.Hour)
					}
				}
				comesBack(web("a"))
				h.expect("a", "Running, main#0 running")
				if got := h.id("a", "main"); got != before {
					t.Errorf("container %s became %s", before, got)
				}
				if said := h.node.said("Remove", "PostStop"); len(said) > 0 {
					t.Errorf("berthd heard %q", said)
				}
				comesBack()
				h.pass(time.Hour)
				h.empty()
				if left, err := os.ReadDir(filepath.Join(h.dir, "pods")); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
				aside, err := filepath.Glob(filepath.Join(h.dir, "damaged", "a-uid.*"))
				if err != nil || len(aside) != 2*row.aside {
					t.Errorf("set aside: %q, %v; want %d", aside, err, 2*row.aside)
				}
			})
		})
	}
}

func writeRecord(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// runs checks that a container runs.
func runs(h *fixture, id string) {
	h.t.Helper()
	statuses, err := h.runtime.List(h.t.Context(), "")
	if err != nil || len(statuses) != 1 || statuses[0].ID != id || statuses[0].Phase != container.Running {
		h.t.Errorf("containers are %+v, %v; want %s to run", statuses, err, id)
	}
}

func TestBerthdComesBack(t *testing.T) {
	t.Parallel()
	for _, forget := range []bool{false, true} {
		t.Run(fmt.Sprintf("without its ledger: %v", forget), func(t *testing.T) {
			t.Parallel()
			within(t, func(h *fixture) {
				h.want(web("a"))
				h.node.restart(forget)
				synctest.Wait()
				h.expect("a", "Running, main#0 running")
				binds := 1
				if forget {
					binds = 2
				}
				if got := h.node.said("PreStart"); len(got) != binds {
					t.Errorf("%q, want %d", got, binds)
				}
				if got := h.node.said("Sync"); !slices.Equal(got, []string{"Sync", "Sync a-uid"}) {
					t.Errorf("%q", got)
				}
				h.want()
				h.empty()
			})
		})
	}
	t.Run("somebody has removed a pod", func(t *testing.T) {
		t.Parallel()
		within(t, func(h *fixture) {
			h.want(web("a"))
			// berthctl remove kills the containers and forgets the pod.
			h.node.mu.Lock()
			clear(h.node.pods)
			clear(h.node.bound)
			h.node.mu.Unlock()
			h.runtime.Exit(h.id("a", "main"), 137)
			synctest.Wait()
			h.pass(time.Second)
			h.expect("a", "Running, main#1 running")
		})
	})
}

func TestLostContainer(t *testing.T) {
	t.Parallel()
	within(t, func(h *fixture) {
		h.want(pod("a", "  restartPolicy: Never\n  containers: [{name: main, image: i, command: [/p, wait]}]\n"))
		if err := h.runtime.Remove(t.Context(), h.id("a", "main")); err != nil {
			t.Fatal(err)
		}
		h.agent.Changed("a-uid")
		synctest.Wait()
		h.expect("a", "Failed, main#0 ContainerLost 137")
	})
}

// A new berthd is logged once each time that it appears.
func TestNoDevices(t *testing.T) {
	t.Parallel()
	for _, none := range []bool{false, true} {
		within(t, func(h *fixture) {
			h.stop()
			h.node.noDevices = none
			h.begin()
			if told := strings.Contains(h.log.String(), "berthd knew no devices when it started"); told != none {
				t.Errorf("berthd knew no devices: %t, and the log tells it: %t\n%s", none, told, h.log.String())
			}
		})
	}
}
