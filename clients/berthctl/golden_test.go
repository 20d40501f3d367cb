package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		programs.Remove()
		os.Exit(code)
	}))
}

var testNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// result is what a run of berthctl left.
type result struct {
	out, err string
	code     int
}

// invoke runs berthctl against a socket.
func invoke(ctx context.Context, path, stdin string, args ...string) result {
	var out, errs bytes.Buffer
	code := run(ctx, command.Env{
		In: strings.NewReader(stdin), Out: &out, Err: &errs,
		Dial: func(ctx context.Context, endpoint string) (*berth.Client, error) {
			if endpoint == "" {
				endpoint = path
			}
			return berth.Dial(ctx, endpoint, berth.Options{Attempts: 1})
		},
		Now: func() time.Time { return testNow }, Getenv: func(string) string { return "" },
	}, args)
	return result{out.String(), errs.String(), code}
}

// step is one run in a golden file.
type step struct {
	args  string
	stdin string
	fake  *fake
}

// podYAML is a manifest whose name decides what the fake makes of it.
func podYAML(name string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", uid: u-" + name +
		"}\nspec: {containers: [{name: app, resources: {limits: {cpu: 2}}}]}\n"
}

const hintPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","uid":"u1"},"spec":{"initContainers":[{"name":"log","restartPolicy":"Always"}],"containers":[{"name":"app"}]}}`

// noUID is podYAML without a uid.
func noUID(name string) string { return strings.Replace(podYAML(name), ", uid: u-"+name, "", 1) }

// sized is a manifest of default/web without a uid, with resources of its container app.
func sized(resources string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: app, resources: {" + resources + "}}]}\n"
}

// misspelt has a field and a resource that no pod has.
const misspelt = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: u-web}\nspec: {nodename: x, containers: [{name: app, resources: {limits: {cpus: 2, memory: 1Gi}, request: {cpu: 1}}}]}\n"

var (
	empty = &fake{empty: true}
	sick  = &fake{sick: true}
	dra   = &fake{claims: true}
)

// goldens are sequences of runs, each in the file of its name.
var goldens = map[string][]step{
	"help": {
		{args: ""}, {args: "admit --help"}, {args: "get --help"}, {args: "container start --help"}, {args: "podresources --help"},
	},
	"complete": {
		{args: "__complete describe pod d"}, {args: "__complete allocate default/web a"}, {args: "__complete get devices e"},
		{args: "__complete remove x", fake: sick},
		{args: "__complete simulate --topology-manager-policy r"}, {args: "__complete topology --export m"},
		{args: "__complete get pods default/web d"}, {args: "__complete explain d"}, {args: "__complete get pods -o n"},
	},
	"usage": {
		{args: "admti"}, {args: "get"}, {args: "get pds"}, {args: "get pods a b"}, {args: "describe pod"},
		{args: "simulate --machine 8c -f - --more -", stdin: podYAML("web")}, {args: "admit -f - -f -", stdin: podYAML("web")},
		{args: "admit"}, {args: "hints"}, {args: "get pods -o xml"}, {args: "get pods --bogus"}, {args: "container start default/web app"},
		{args: "sync"}, {args: "sync --none --active a"}, {args: "sync --active="}, {args: "topology out.json"}, {args: "allocate app"},
		{args: "allocate default/web app -f x"}, {args: "get containers default/web -n shop"},
		{args: "admit -f - --admission-id x", stdin: podYAML("web") + "---\n" + podYAML("big")},
		{args: "admit -f - --holds app:cpus=1", stdin: podYAML("web") + "---\n" + podYAML("big")},
		{args: "admit -f - --holds cpus=1", stdin: podYAML("web")}, {args: "admit -f - --holds app:cpus=x", stdin: podYAML("web")},
		{args: "admit -f - --holds app:memory=0", stdin: podYAML("web")},
		{args: "admit -f - --holds app:memory=4Gi", stdin: podYAML("web")},
		{args: "admit -f - --holds app:gpu=g0", stdin: podYAML("web")},
		{args: "admit -f - --holds app:cpus=1 --holds app:cpus=2", stdin: podYAML("web")},
		{args: "get pods --timeout -1s"}, {args: "remove default/"}, {args: "remove /"}, {args: "describe pod /web"},
	},
	"history": {
		{args: "history"}, {args: "history -o wide --limit 3"}, {args: "history default/big --verdict rejected --since 1h"},
		{args: "history nobody"},
		{args: "history u-big -o json --caller agent"}, {args: "history --caller 0 --until 2026-11-20T11:59:00Z --call Admit"},
		{args: "history --verdict maybe"}, {args: "history --since yesterday"}, {args: "history --limit -1"}, {args: "history", fake: sick},
		{args: "history --help"}, {args: "get pods --at 10m"}, {args: "get cpus --at 7"},
		{args: "get pods default/web --at 2026-11-20T03:00:00Z"},
		{args: "get pods --at noon"}, {args: "get pods --at 7 -w"}, {args: "map --at 7 --changes 1h"}, {args: "get devices --at 10m"},
		{args: "get memory --at 10m"}, {args: "get numa --at 10m"}, {args: "get pods web --at 5"}, {args: "get node --at 7"},
	},
	"replay": {
		{args: "replay --topology-manager-policy best-effort"}, {args: "replay testdata/docs/incident.tar.gz"},
		{args: "replay testdata/docs/incident.tar.gz -o wide --machine 2s1n4c2t --reserved-cpus 0,8"},
		{args: "replay testdata/docs/incident.tar.gz --machine 2s1n4c2t --reserved-cpus 0,8 --explain 0"},
		{args: "replay testdata/docs/incident.tar.gz --topology-manager-policy none --keep-policy -o json"},
		{args: "replay testdata/docs/incident.tar.gz --topology-manager-policy best-effort --map"},
		{args: "map --bundle testdata/docs/incident.tar.gz --pod web"},
		{args: "map --bundle testdata/docs/incident.tar.gz --at 1838538615209989"},
		{args: "map --bundle testdata/docs/incident.tar.gz --at 2026-11-23T00:00:00Z"},
		{args: "map --bundle testdata/docs/incident.tar.gz --pod nobody"},
		{args: "simulate --bundle testdata/docs/incident.tar.gz -f -", stdin: podYAML("more")},
		{args: "simulate --bundle testdata/docs/incident.tar.gz --machine 8c --reserved-cpus 0 -f -", stdin: podYAML("more")},
		{args: "replay testdata/docs/incident.tar.gz --ledger x"}, {args: "replay --ledger x"},
		{args: "replay --ledger nowhere --machine 8c"},
		{args: "replay ../../deploy/examples/pages/web.yaml"},
		{args: "replay nowhere"}, {args: "replay --explain -1"}, {args: "replay", fake: sick},
		{args: "bundle --machine 8c"}, {args: "bundle --ledger nowhere"}, {args: "bundle -o testdata"}, {args: "replay --help"},
		{args: "bundle --help"},
	},
	"fit": {
		{args: "fit"}, {args: "fit", fake: empty}, {args: "fit -f -", stdin: podYAML("web")},
		{args: "fit -f - -o json", stdin: podYAML("web")},
		{args: "fit -f - -f ../../deploy/examples/pages/web.yaml -f ../../deploy/examples/pages/worker.yaml", stdin: podYAML("big")},
		{args: "fit -o yaml"},
		{args: "fit -f ../../deploy/examples/pages/web.yaml --bundle testdata/docs/incident.tar.gz"},
		{args: "fit --bundle testdata/docs/incident.tar.gz -o json"},
		{args: "fit -f ../../deploy/examples/pages/worker.yaml --bundle testdata/docs/incident.tar.gz --topology-manager-policy single-numa-node"},
		{args: "fit --bundle x --ledger y"}, {args: "fit --ledger y"}, {args: "fit --ledger nowhere --machine 8c"},
		{args: "fit --bundle nowhere"},
		{args: "fit --topology-manager-policy none"}, {args: "fit -f nowhere"}, {args: "fit pod"}, {args: "fit --help"},
	},
	"reload": {
		{args: "reload"}, {args: "reload --dry-run"}, {args: "reload -o yaml"}, {args: "reload", fake: empty}, {args: "reload", fake: sick},
		{args: "reload now"}, {args: "reload --help"},
	},
	"hugepages": {
		{args: "hugepages set --node 1 2Mi=500"}, {args: "hugepages set --node 1 2Mi=512"}, {args: "hugepages set --node 0-2 2Mi=10"},
		{args: "hugepages set --node 0-1 2Mi=512 --dry-run"}, {args: "hugepages set --node 1 2Mi=512 -o json"},
		{args: "hugepages set --node 1 2Mi=10", fake: sick},
		{args: "hugepages set 2Mi=0:512,1:256"}, {args: "hugepages set 2Mi=0:1,0:2"}, {args: "hugepages set 2Mi=0:x"},
		{args: "hugepages set --node 1 2Mi=0:512"}, {args: "hugepages set 2Mi=64:1"},
		{args: "hugepages set two=0:512"}, {args: "hugepages set two=1"},
		{args: "hugepages set 2Mi=512"}, {args: "hugepages set --node 1"}, {args: "hugepages set --node x 2Mi=1"},
		{args: "hugepages set --node 1 2Mi"},
		{args: "hugepages set --node 1 2Mi=-1"}, {args: "hugepages set --node 1 2=1"}, {args: "hugepages set --node 1 two=1"},
		{args: "hugepages set --help"},
	},
	"policy": {
		{args: "policy get"}, {args: "policy get", fake: empty}, {args: "policy get -o yaml"},
		{args: "policy set --topology-manager-policy restricted --dry-run"}, {args: "policy set --topology-manager-policy restricted"},
		{args: "policy set --eviction-hard= --reserved-memory 0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=1Gi --topology-max-nodes 16"},
		{args: "policy set --reserved-memory memory=1Gi"}, {args: "policy set --eviction-hard memory.available"},
		{args: "policy set", fake: empty}, {args: "policy set --cpu-manager-policy-options full"},
		{args: "policy"}, {args: "policy set --help"},
	},
	"simulate": {
		{args: "simulate --machine 2s2n4c2t --config testdata/simulate/berth.yaml --devices testdata/simulate/devices.yaml -f testdata/simulate/pods --more testdata/simulate/worker.yaml"},
		{args: "simulate --machine 2s1n4c6m --cpu-manager-policy static --reserved-cpus 0 -f - -o wide --explain --more testdata/simulate/shared.yaml --most 7", stdin: podYAML("web")},
		{args: "simulate --machine 1s8c -f - -o json", stdin: podYAML("web")},
		{args: "simulate --machine 1s8c -f - --then sideways=1", stdin: podYAML("web")},
		{args: "simulate --machine 64c -f - --more testdata/simulate/fpga.yaml", stdin: podYAML("web")},
		{args: "simulate --machine 1s8n16c --cpu-manager-policy static --reserved-cpus 0 --topology-manager-policy single-numa-node --topology-planning pod --more testdata/simulate/warm.yaml"},
		{args: "simulate --machine 1s8n16c --cpu-manager-policy static --reserved-cpus 0 --topology-manager-policy single-numa-node --topology-planning container --more testdata/simulate/warm.yaml"},
		{args: "simulate --machine 1s8n16c --cpu-manager-policy static --reserved-cpus 0 --topology-manager-policy single-numa-node --topology-planning app --more testdata/simulate/warm.yaml"},
		{args: "simulate --machine 64c --config testdata/simulate/elsewhere.yaml -f testdata/simulate/fpga.yaml"},
		{args: "simulate --machine 64c -f testdata/simulate/claims.yaml --explain"},
		{args: "simulate --machine 64c -f testdata/simulate/debugged.yaml --explain"},
		{args: "simulate --machine 1s2n4c2t --map --ascii --width 60"},
		{args: "simulate"}, {args: "simulate -f x"}, {args: "simulate --machine 9x -f x"},
		{args: "simulate --machine 8c -f nowhere"},
		{args: "simulate --machine 8c -f testdata/import"}, {args: "simulate --machine 8c -f - --topology-manager-policy loose",
			stdin: podYAML("web")},
		{args: "simulate --machine 8c -f - --device gpu", stdin: podYAML("web")},
		{args: "simulate --machine 8c -f - --device example.com/gpu=a@1", stdin: podYAML("web")},
		{args: "simulate --machine 8c -f -", stdin: podYAML("web") + "---\n" + podYAML("web")},
		{args: "simulate --machine 8c --cpu-manager-policy static -f -", stdin: podYAML("web")},
	},
	"top": {
		{args: "top"}, {args: "top --once --interval 500ms -o json --filter web"}, {args: "top --once --interval 500ms", fake: empty},
		{args: "top --interval 1ms"}, {args: "top --sort size"}, {args: "top --help"},
	},
	"map": {
		{args: "map"}, {args: "map --width 60 --ascii --detail cores --node 0"}, {args: "map --pod default/web --color always"},
		{args: "map --changes 1h --detail nodes"}, {args: "map -o json"}, {args: "map", fake: empty},
		{args: "map --node 7"}, {args: "map --node x"}, {args: "map --pod nobody"}, {args: "map --changes soon"},
		{args: "map --detail all"},
		{args: "map --color blue"}, {args: "map --width -1"}, {args: "map --help"},
		{args: "simulate --machine 2s2n4c2t --config testdata/simulate/berth.yaml --devices testdata/simulate/devices.yaml -f testdata/simulate/pods --map"},
		{args: "admit -f - --dry-run --map", stdin: podYAML("placed")}, {args: "admit -f - --dry-run --map", stdin: podYAML("big")},
		{args: "admit -f - --map", stdin: podYAML("web")}, {args: "explain default/big --map"},
	},
	"admit": {
		{args: "admit -f -", stdin: podYAML("web")},
		{args: "admit -f - -o wide --dry-run --explain", stdin: podYAML("web")},
		{args: "admit -f -", stdin: podYAML("big")},
		{args: "admit -f - --dry-run", stdin: podYAML("big")},
		{args: "admit -f - --explain", stdin: podYAML("big")},
		{args: "admit -f -", stdin: podYAML("early")},
		{args: "admit -f -", stdin: podYAML("without")},
		{args: "admit -f -", stdin: podYAML("early") + "---\n" + podYAML("big") + "---\n" + podYAML("web")},
		{args: "admit -f - -o json --admission-id mine", stdin: podYAML("early")},
		{args: "admit -f - -o yaml", stdin: podYAML("early")},
	},
	"errors": {
		{args: "admit -f -", stdin: podYAML("wrong")},
		{args: "admit -f -", stdin: podYAML("changed")},
		{args: "admit -f -", stdin: podYAML("full")},
		{args: "admit -f -", stdin: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {nodename: x}\n"},
		{args: "admit -f -", stdin: "kind: Deployment\napiVersion: apps/v1\n"},
		{args: "admit -f -", stdin: ""},
		{args: "get pods --endpoint tcp://127.0.0.1:1"},
		{args: "podresources list --socket tcp://127.0.0.1:1"},
		{args: "get pods -n nowhere --resource example.com/none", fake: empty}, {args: "get containers", fake: empty},
		{args: "get pods --timeout 1ns"},
		{args: "describe pod nobody"},
		{args: "describe pod twin"},
		{args: "describe container default/web nobody"},
		{args: "explain nobody"},
		{args: "get devices example.com/none"},
		{args: "podresources get default/nobody"}, {args: "sync --active twin"}, {args: "sync --active shop/gone"},
		{args: "hints -f -", stdin: podYAML("a") + "---\n" + podYAML("b")},
	},
	"allocate": {
		{args: "allocate default/web app"},
		{args: "allocate " + webUID + " app -o wide"},
		{args: "allocate -f - app -o json", stdin: podYAML("web")},
		{args: "allocate -f - app", stdin: podYAML("big")},
		{args: "allocate web nobody"},
	},
	"container": {
		{args: "container start default/web app --id c0ffee --pid 7"},
		{args: "container start default/web app --id c0ffee"},
		{args: "container start default/web app --id c0ffee -o json"},
		{args: "container stop c0ffee"},
		{args: "container stop gone"},
	},
	"foreign": {
		{args: "apply -f web.yaml"}, {args: "--timeout 1s logs web"}, {args: "exec -it web sh"}, {args: "cordon"}, {args: "ps -o json"},
		{args: "explan apply"}, {args: "get apply"},
	},
	"providers": {
		{args: "providers"}, {args: "providers -o name"}, {args: "providers remove power"}, {args: "providers remove power -o json"},
		{args: "providers remove gone"}, {args: "providers remove"}, {args: "providers power"},
	},
	"forget": {
		{args: "forget example.com/nic"}, {args: "forget example.com/nic -o json"}, {args: "forget example.com/gpu"}, {args: "forget"},
	},
	"remove": {
		{args: "remove default/web"},
		{args: "remove " + webUID + " -o json"},
		{args: "remove gone"},
		{args: "remove default/gone"},
		{args: "remove default/web gone"}, {args: "remove default/web default/gone"}, {args: "remove"},
		{args: "delete pod default/web"},
		{args: "sync --active " + webUID + "," + otherUID},
		{args: "sync -f -", stdin: "# living\n" + webUID + "\n\n  " + otherUID + "\r\n" + twinUID},
		{args: "sync --none -o json"},
	},
	"cgroups": {
		{args: "get cgroups"}, {args: "get cgroups -o wide"}, {args: "get cgroups", fake: empty},
		{args: "describe cgroup /kubepods/burstable/podu1"}, {args: "describe cgroup /kubepods.slice"},
		{args: "describe cgroup /kubepods/burstable"},
		{args: "describe cgroup /kubepods/besteffort -o json"}, {args: "describe cgroup /other"},
		{args: "get node"}, {args: "get node -o wide"}, {args: "get node -o json"},
	},
	"plan": {
		{args: "plan"}, {args: "plan resize web app --cpu 4"}, {args: "plan resize web app --cpu 4 --map --width 60"},
		{args: "plan resize web app --cpu 4 -o json"},
		{args: "plan resize " + twinUID + " --set c:limits.cpu=2"}, {args: "plan resize -f - --map", stdin: podYAML("big")},
		{args: "plan resize web"},
		{args: "resize web app --cpu 4"},
		{args: "plan defrag --for - --map --width 60", stdin: podYAML("big")}, {args: "plan defrag --for -", stdin: podYAML("web")},
		{args: "plan defrag --for -", stdin: podYAML("gone")},
		{args: "plan defrag --for - -o json", stdin: podYAML("big")}, {args: "plan defrag"},
	},
	"defrag": {
		{args: "defrag --for -", stdin: podYAML("web")}, {args: "defrag --for - --dry-run", stdin: podYAML("big")},
		{args: "defrag --for - --max-moves 2 --rate 512Mi", stdin: podYAML("big")}, {args: "defrag --for - -o json", stdin: podYAML("big")},
		{args: "defrag --for -", stdin: podYAML("early")}, {args: "defrag --for - --dry-run", stdin: podYAML("gone")},
		{args: "defrag --for - --max-moves 0", stdin: podYAML("big")}, {args: "defrag --max-moves few"},
		{args: "defrag --max-moves 5000000000"}, {args: "defrag --dry-run=perhaps"},
		{args: "defrag"}, {args: "defrag --for - --rate fast", stdin: podYAML("big")},
		{args: "defrag --for - --rate -1", stdin: podYAML("big")},
	},
	"resize": {
		{args: "resize -f -", stdin: podYAML("web")}, {args: "resize -f - --dry-run", stdin: podYAML("web")},
		{args: "resize -f -", stdin: podYAML("big")}, {args: "resize -f -", stdin: podYAML("early")},
		{args: "resize -f -", stdin: podYAML("gone")}, {args: "resize -f - -o json", stdin: sized("limits: {cpu: 3}")}, {args: "resize"},
		{args: "resize default/web --set app:limits.cpu=2 --set app:requests.memory=1Gi --set limits.cpu=4 --dry-run --if-revision 12 --admission-id try-1"},
		{args: "resize " + twinUID + " --set c:limits.cpu=2 --max-disruption move-cpus"}, {args: "resize web"}, {args: "resize web -f -"},
		{args: "resize --set app:limits.cpu=1"}, {args: "resize web --set app:limits=2"},
		{args: "resize web --set app:limits.cpu=1 --set app:limits.cpu=2"},
		{args: "resize web --set app:limits.cpu=1 --max-disruption all"},
		{args: "resize web app --cpu 3 --memory 2Gi"}, {args: "resize " + twinUID + " --cpu 3"}, {args: "resize web --cpu 3"},
		{args: "resize web nobody --cpu 3"},
		{args: "resize web app"}, {args: "resize web app --set app:limits.cpu=1"}, {args: "resize -f - --cpu 2"},
		{args: "resize -f -", stdin: sized("")}, {args: "resize -f - --dry-run", stdin: sized("limits: {cpu: 2000m}")},
		{args: "resize -f -", stdin: sized("limits: {cpu: 2500m, memory: 1Gi}, requests: {memory: 512Mi}")},
		{args: "resize -f - --dry-run", stdin: sized("requests: {cpu: 2, memory: 1073741825}, limits: {cpu: 2, memory: 1Gi}")},
		{args: "resize web log --set log:requests.cpu=1"}, {args: "resize web --set log:requests.cpu=1 --set limits.cpu=4"},
		{args: "resize web app --cpu 2"}, {args: "plan resize -f -", stdin: sized("")}, {args: "plan resize web app --cpu 3"},
	},
	"get": {
		{args: "get pods"}, {args: "get pods -o wide"}, {args: "get pods -n test"}, {args: "get pods -n test -o json"},
		{args: "get pods --sort-by -cpus"}, {args: "get pods --sort-by Age --no-headers"}, {args: "get memory --sort-by free"},
		{args: "get pods --sort-by memory"}, {args: "get pods --sort-by size"}, {args: "get pods --sort-by name -o json"},
		{args: "get pods -o custom-columns=POD:.name,NOT:.there,CPUS:.containers[*].cpus,ROLES:{.containers[*].role}"},
		{args: "get pods -o custom-columns=POD:name,IDS:.containers[0].containerIds,TRUE:.containers[0].exclusiveCpus --sort-by -pod --no-headers"},
		{args: "get pods -o custom-columns=POD"}, {args: "get pods -o custom-columns=POD:.name["},
		{args: "describe pod web twin -n test -o custom-columns=POD:.name,KIND:.kind"}, {args: "get pods web -l app=web"},
		{args: "get pods -l app=web --owner nobody"},
		{args: "get spec default/web"}, {args: "get spec " + webUID + " -o json"}, {args: "get spec nobody"},
		{args: "get traces --refused"}, {args: "get traces -n shop -o wide"}, {args: "get traces --reason None"},
		{args: "get traces --refused -o json"},
		{args: "get containers"}, {args: "get containers web -o wide"},
		{args: "get cpus"}, {args: "get cpus -o wide"}, {args: "get cpus -o yaml"},
		{args: "get memory"}, {args: "get memory -o wide"}, {args: "get memory -o json"}, {args: "get memory", fake: empty},
		{args: "get numa"}, {args: "get numa -o wide"}, {args: "get numa", fake: empty}, {args: "get numa -o yaml"},
		{args: "get devices"}, {args: "get devices example.com/gpu -o wide"}, {args: "get devices example.com/nic -o json"},
		{args: "get resources"}, {args: "get resources -o wide"}, {args: "get resources -o json"},
		{args: "get providers"}, {args: "get providers -o wide"}, {args: "get providers -o yaml"}, {args: "get providers", fake: empty},
	},
	"claims": {
		{args: "get claims", fake: dra}, {args: "get claims -o wide", fake: dra}, {args: "get claim web -o json", fake: dra},
		{args: "get claims -o name", fake: dra},
		{args: "get claims"}, {args: "get claims -n shop --owner dra", fake: dra}, {args: "get claims twin", fake: dra},
		{args: "get claims web --owner dra", fake: dra},
		{args: "get claims " + claimUID + " --no-headers", fake: dra}, {args: "get claims " + webUID, fake: dra},
		{args: "get claims --help"},
		{args: "get pods", fake: dra}, {args: "get pods web", fake: dra}, {args: "get pods spare", fake: dra},
		{args: "get pods -o name", fake: dra}, {args: "describe pod spare", fake: dra},
		{args: "explain claim web", fake: dra}, {args: "explain claim/default/web", fake: dra},
		{args: "explain claim " + claimUID, fake: dra}, {args: "explain claim default/big", fake: dra},
		{args: "explain claim big", fake: dra},
		{args: "explain claim notes", fake: dra}, {args: "explain web other", fake: dra}, {args: "explain web", fake: dra},
		{args: "map", fake: dra}, {args: "map --ascii --detail nodes --width 60", fake: dra}, {args: "map -o json", fake: dra},
		{args: "map --pod spare", fake: dra},
	},
	"empty": {
		{args: "get pods", fake: empty}, {args: "get pods -o json", fake: empty}, {args: "get containers", fake: empty},
		{args: "get devices", fake: empty}, {args: "get resources", fake: empty}, {args: "sync --none", fake: empty},
	},
	"describe": {
		{args: "describe pod default/web"}, {args: "describe pod " + twinUID}, {args: "describe container web app"},
		{args: "describe container shop/twin c -o json"},
		{args: "describe node"}, {args: "describe node", fake: empty}, {args: "describe node -o json", fake: empty},
	},
	"explain": {
		{args: "explain default/web"}, {args: "explain web -o wide"}, {args: "explain default/big"}, {args: "explain " + otherUID},
		{args: "explain notes"}, {args: "explain notes -o wide"},
		{args: "explain ADMISSION3"}, {args: "explain default/early -o json"},
		{args: "explain pod notes ADMISSION3"}, {args: "explain notes nobody"}, {args: "explain"},
		{args: "describe pod default/web nobody"}, {args: "describe pod default/web " + twinUID + " -o jsonpath={.uid}"},
	},
	"hints": {
		{args: "hints -f -", stdin: hintPod},
		{args: "hints -f -", stdin: hintPod, fake: empty},
		{args: "hints -f - -o yaml", stdin: hintPod, fake: empty},
	},
	"habits": {
		{args: "get po"}, {args: "get pod -A"}, {args: "get no"}, {args: "get nodes --no-headers"}, {args: "get dev"},
		{args: "get co --no-headers"},
		{args: "get pods -o name"}, {args: "get containers -o name -n test"}, {args: "get devices -o name"}, {args: "get numa -o name"},
		{args: "get rejections -o name"},
		{args: "get po -o name -n shop"}, {args: "get co -o name --no-headers -n test"}, {args: "get cg -o name"},
		{args: "get cpus -o name"},
		{args: "get po/web"}, {args: "get pod/twin"}, {args: "get pods/test/twin --no-headers"},
		{args: "get pods pod/twin -n shop --no-headers"}, {args: "describe pod/web -n default"},
		{args: "explain po/big"}, {args: "explain rejection/ADMISSION3"}, {args: "get nothing/web"}, {args: "get pod/"},
		{args: "describe cgroup//kubepods/burstable"},
		{args: "get pods -o jsonpath={.items[*].name}"}, {args: "get pods -o jsonpath={range.items[*]}{.namespace}/{.name}{\"\\n\"}{end}"},
		{args: "get pods -o jsonpath=.revision"}, {args: "get pods -o jsonpath={.nothing}"},
		{args: "get pods twin -n test"}, {args: "describe po web -n default"}, {args: "describe co twin c -n shop"},
		{args: "get spec web -n default -o jsonpath={.status.qosClass}"},
		{args: "explain big"}, {args: "explain cart"}, {args: "explain early"}, {args: "explain early -n shop"},
		{args: "get rejections"}, {args: "get rejections -o wide"}, {args: "get rejections -n nowhere"},
		{args: "get devices --color always"},
		{args: "get traces --refused --color always"}, {args: "admit -f - --color always",
			stdin: podYAML("web") + "---\n" + podYAML("early") + "---\n" + podYAML("big")},
		{args: "get pods --bogus -o json"}, {args: "describe pod nobody -o json"}, {args: "admit -f - -o yaml", stdin: podYAML("wrong")},
		{args: "get pods -A -n shop"}, {args: "watch -A -n shop"}, {args: "get pods -o jsonpath="},
		{args: "get pods -o jsonpath={.items[}"},
		{args: "admit -f - -o name", stdin: podYAML("web")}, {args: "get pods --color blue"}, {args: "get providers -w"},
	},
	"examples": {
		{args: "simulate --machine 8c --cpu-manager-policy static --reserved-cpus 0 --device example.com/gpu=gpu0@0 -f ../../deploy/examples --strict"},
	},
	"files": {
		{args: "admit -f testdata/manifests/a.yaml -f testdata/manifests/b.json"},
		{args: "admit -f testdata/manifests/a.yaml,testdata/manifests/b.json -o jsonpath={.verdict}"},
		{args: "admit -f testdata/manifests"}, {args: "admit -R -f testdata/manifests --dry-run"},
		{args: "admit -f - -f testdata/manifests/b.json", stdin: podYAML("early")},
		{args: "admit -f - -f -", stdin: podYAML("web")}, {args: "admit -f testdata/manifests/nowhere.yaml"},
		{args: "admit -f testdata/import"},
		{args: "admit -f - --dry-run", stdin: noUID("web")}, {args: "admit -f -", stdin: noUID("web")},
		{args: "hints -f -", stdin: noUID("web")},
		{args: "resize -f - --dry-run", stdin: noUID("web")}, {args: "resize -f -", stdin: noUID("nobody")},
		{args: "admit -f - --dry-run", stdin: misspelt}, {args: "admit -f - --dry-run --strict", stdin: misspelt},
		{args: "simulate --machine 8c -f - --strict", stdin: misspelt}, {args: "simulate --machine 8c -f testdata/manifests -R"},
		{args: "hints -f -", stdin: strings.Replace(hintPod, `{"name":"app"}`,
			`{"name":"app","resources":{"limits":{"example.com/fpga":"1"}}}`, 1), fake: empty},
		{args: "simulate --machine 64c --config testdata/simulate/elsewhere.yaml --more testdata/simulate/fpga.yaml --most 3"},
	},
	"topology": {
		{args: "topology"}, {args: "topology -o wide"}, {args: "topology --export"},
	},
	"ledger": {
		{args: "ledger dump"}, {args: "ledger dump -o wide"}, {args: "ledger dump -o json"},
		{args: "ledger check"}, {args: "ledger check", fake: sick}, {args: "ledger check -o json", fake: sick},
	},
	"ledgerimport": importSteps,
	"podresources": {
		{args: "podresources list"}, {args: "podresources list -o yaml"}, {args: "podresources get web"},
		{args: "podresources get shop/twin -o json"}, {args: "podresources allocatable"},
	},
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for name, steps := range goldens {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sockets := make(map[*fake]string)
			usual := &fake{}
			var got bytes.Buffer
			for _, s := range steps {
				f := s.fake
				if f == nil {
					f = usual
				}
				if sockets[f] == "" {
					sockets[f] = f.start(t)
				}
				r := invoke(t.Context(), sockets[f], s.stdin, strings.Fields(s.args)...)
				fmt.Fprintf(&got, "$ berthctl %s\n%s", s.args, r.out)
				for line := range strings.Lines(r.err) {
					fmt.Fprintf(&got, "! %s", line)
				}
				fmt.Fprintf(&got, "= %d\n\n", r.code)
			}
			compare(t, filepath.Join("testdata", name+".golden"), got.Bytes())
		})
	}
}

// compare holds a text against a golden file, or writes it with -update.
func compare(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		g, w := lineAt(gotLines, i), lineAt(wantLines, i)
		if g != w {
			t.Fatalf("%s:%d:\ngot  %q\nwant %q\n(-update writes it anew)", path, i+1, g, w)
		}
	}
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(the end)"
}

// TestNoTrailingBlanks checks every line of output.
func TestNoTrailingBlanks(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(paths) != len(goldens) {
		t.Fatalf("%d golden files for %d tests, %v", len(paths), len(goldens), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if strings.TrimRight(line, " \t") != line && !strings.HasPrefix(line, "$") {
				t.Errorf("%s:%d: %q", path, i+1, line)
			}
		}
	}
}
