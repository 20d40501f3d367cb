package quickstart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/kubeletnode"
)

// treatment says what a test does with a command of a page that does not simply run and succeed.
type treatment struct {
	// code is the exit code where it is not 0: a finding, or a mistake.
	code int
	// endless commands are ended after their first output.
	endless bool
	// want is a pattern of the output.
	want string
	// parsed means that a berthd would stay and use this machine: its flags and files are checked instead.
	parsed bool
	// before is a change of the machine that the page speaks of.
	before string
	// why it does not run here, and the file of a test or lane that does what it does, with a part of that file's text.
	why, lane, has string
}

// pageCommands has, for each page, what the reader's machine is like, and the commands that do not simply run. A command that is not here
// runs as it is written, and has to succeed.
type pageCommands struct {
	page  string
	files map[string]string
	// setup and end come before and after all commands.
	setup, end string
	// node means that the machine is a node whose kubelet decides.
	node bool
	// treated are the commands that need a treatment. A key that ends in … stands for all commands that begin with it.
	treated map[string]treatment
}

const (
	needsCluster = "it needs a cluster"
	needsSystemd = "it needs systemd"
	needsKernel  = "it changes the machine"
	needsBuild   = "it builds or installs everything"
	needsEngine  = "it needs a container engine"
	needsPython  = "it needs Python's gRPC"
)

// Files of lanes: the cluster of make test-cluster; the packages in a virtual machine of make test-all.
const (
	observeLane = "clients/nri/clusterobserve_test.go"
	installLane = "clients/nri/clusterinstall_test.go"
	packageLane = "hack/installtest/machine_linux_test.go"
	walkLane    = "hack/installtest/walk_linux_test.go"
	pythonLane  = "hack/apiconformance/python_test.go"
	imageLane   = "hack/tools/image/image_test.go"
	checkLane   = "clients/berthctl/kubeletcheck_test.go"

	manifestsLane = "hack/manifests/manifests_test.go"
	schedulerLane = "clients/nri/clusterscheduler_test.go"
	claimsLane    = "clients/nri/daemonsetclaims_test.go"
	criLane       = "clients/berthlet/containerd_test.go"
)

// ownEtc lets a reader write to /etc.
const ownEtc = `mkdir /run/etc && mount -t tmpfs tmpfs /run/etc && mkdir /run/etc/upper /run/etc/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
mkdir -p /etc/berth && cp berthd.yaml /etc/berth/berthd.yaml
`

// daemon starts a berthd for a made-up machine at its usual socket, as a service would.
const daemon = ownEtc + `berthd --config /etc/berth/berthd.yaml &
` + tried + `berthctl get node --wait-ready
`

// configured is a configuration for a made-up machine.
const configured = `apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
machine: 2s8n16c1t
cpu: {policy: static}
memory: {policy: Static, allowUnreserved: true}
topology: {policy: restricted}
reserved: {cpus: "0", evictionHard: {}}
cgroups: {tree: memory}
node: {enforceNodeAllocatable: [none]}
`

// ended ends the first job. By its number it could not be waited for if bash has seen its end already.
const ended = "first=$(jobs -p %1)\nkill $first\nwait $first\ntrap - EXIT\n"

// podOf is a pod with a container.
func podOf(name, container, cpus string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, uid: u-%[1]s}\n"+
		"spec: {containers: [{name: %s, image: x, resources: {limits: {cpu: %s, memory: 1Gi}}}]}\n", name, container, cpus)
}

// rejected are the pods of a node whose kubelet has rejected one.
const rejected = `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod",
	"metadata": {"name": "wide", "namespace": "shop", "uid": "u-wide"},
	"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "5", "memory": "1Gi"}}}]},
	"status": {"phase": "Failed", "reason": "TopologyAffinityError", "startTime": "2026-01-02T03:04:05Z"}}]}
`

const podsOfNode = "kubectl get pods -A -o json --field-selector spec.nodeName=NODE > pods.json"

var commandsOfPages = []pageCommands{
	{page: "python.md", setup: tried,
		end: "berthctl admit -f pod.json --dry-run --wait-ready --endpoint /run/berth-try/berth.sock\n" + ended,
		treated: map[string]treatment{
			"python3 -m venv venv": {why: needsPython, lane: pythonLane, has: "protoc"},
			"venv/bin/pip install grpcio grpcio-tools googleapis-common-protos": {why: needsPython, lane: pythonLane, has: "protoc"},
			"venv/bin/python3 -m grpc_tools.protoc -I proto --python_out=generated --grpc_python_out=generated " +
				"$(find proto -name '*.proto')": {
				why: needsPython, lane: pythonLane, has: "protoc"},
			"sudo PYTHONPATH=generated venv/bin/python3 agent.py /run/berth-try/berth.sock pod.json nproc": {
				why: needsPython, lane: pythonLane, has: "agent.py"},
		}},
	{page: "check.md", node: true, setup: "cp cpu_manager_state memory_manager_state /var/lib/kubelet\n", files: map[string]string{
		"pods.json":            rejected,
		"cpu_manager_state":    `{"policyName":"static","defaultCpuSet":"0,4-5","entries":{"u-db":{"app":"3"}},"checksum":0}`,
		"memory_manager_state": `{"policyName":"None","machineState":{},"entries":{},"checksum":0}`,
	}, treated: map[string]treatment{
		podsOfNode: {why: needsCluster, lane: "clients/nri/cluster_test.go", has: "--field-selector"},
		"kubectl drain NODE --ignore-daemonsets --delete-emptydir-data": {why: needsCluster, lane: checkLane, has: "docs/check.md"},
		"systemctl stop kubelet":                          {why: needsSystemd, lane: checkLane, has: "docs/check.md"},
		"sudo berthctl check --kubelet --pods pods.json":  {code: 3, want: "error cpus-in-no-set"},
		"berthctl check --kubelet --pods pods.json --now": {code: 3},
		"systemctl start kubelet":                         {why: needsSystemd, lane: checkLane, has: "docs/check.md"},
		"kubectl uncordon NODE":                           {why: needsCluster, lane: checkLane, has: "docs/check.md"},
	}},
	{page: "kubelet.md", node: true, files: map[string]string{
		"pods.json": rejected, "pod.yaml": podOf("mine", "main", "2"), "pods/more.yaml": podOf("more", "main", "1"),
		"configz.json": `{"kubeletconfig": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}}`,
	}, treated: map[string]treatment{
		podsOfNode: {why: needsCluster, lane: "clients/nri/cluster_test.go", has: "--field-selector"},
		"kubectl get --raw /api/v1/nodes/NODE/proxy/configz > configz.json": {why: needsCluster,
			lane: "clients/nri/clusterkubelets_test.go", has: "configz"},
		"kubectl apply -k deploy/kubernetes/overlays/observe": {
			why: needsCluster, lane: observeLane, has: "overlays/observe"},
		"kubectl -n berth-observe get pods -o wide":                           {why: needsCluster, lane: observeLane, has: "berth-observe"},
		"kubectl -n berth-observe exec POD -- berthctl explain shop/wide":     {why: needsCluster, lane: observeLane, has: "berth-observe"},
		"kubectl -n berth-observe exec POD -- berthctl check --kubelet=/host": {why: needsCluster, lane: observeLane, has: "berth-observe"},
		"kubectl -n berth-observe port-forward POD 10470":                     {why: needsCluster, lane: observeLane, has: "berth-observe"},
		"berthctl web --kubelet --pods pods.json":                             {endless: true, want: `http://127\.0\.0\.1:8087/`},
		"berthctl watch --kubelet":                                            {endless: true},
	}},
	{page: "install.md", setup: ownEtc, files: map[string]string{"berthd.yaml": configured}, treated: map[string]treatment{
		"make build":        {why: needsBuild, lane: packageLane, has: "hack/package.sh"},
		"sudo make install": {why: needsBuild, lane: "hack/stage.sh", has: "hack/install.sh"},
		"sudo systemd-sysusers && sudo systemd-tmpfiles --create && sudo systemctl daemon-reload": {
			why: needsSystemd, lane: walkLane, has: "systemctl daemon-reload"},
		"sudo systemctl enable --now berthd": {why: needsSystemd, lane: walkLane, has: "systemctl enable --now berthd"},
		"make package":                       {why: needsBuild, lane: packageLane, has: "hack/package.sh"},
		"sudo apt install ./dist/berthd_*_amd64.deb ./dist/berth-client_*_amd64.deb": {why: needsBuild, lane: walkLane, has: "apt install"},
		"make image": {why: needsBuild, lane: "hack/containerd/test.sh", has: "hack/image.sh"},
		"sudo ctr --namespace k8s.io images import dist/berthd-*.oci.tar": {
			why: needsEngine, lane: "hack/testing/containerd/images_test.go", has: ".oci.tar"},
		"podman load -i dist/berthd-*.oci.tar": {
			why: needsEngine, lane: imageLane, has: "TestDockerLoad"},
		"skopeo copy oci-archive:dist/berthd-VERSION.oci.tar docker://REGISTRY/berthd:VERSION": {
			why: needsEngine, lane: imageLane, has: "ImageIndexFromPath"},
	}},
	{page: "upgrade.md", setup: daemon, end: ended, files: map[string]string{"berthd.yaml": configured}, treated: map[string]treatment{
		"sudo apt install --only-upgrade ./*_NEW-1_amd64.deb": {why: needsBuild, lane: packageLane, has: "an upgrade"},
		"sudo systemctl stop berthd.socket berthd.service && sudo cp /var/lib/berth/ledger.db /var/lib/berth-before.db": {
			why: needsSystemd, lane: packageLane, has: "berthd.socket"},
		"sudo systemctl start berthd": {why: needsSystemd, lane: packageLane, has: "systemctl"},
	}},
	{page: "operate.md", setup: daemon, end: ended, files: map[string]string{"berthd.yaml": configured}, treated: map[string]treatment{
		"journalctl -u berthd BERTH_EVENT=verdict --since -1h": {why: needsSystemd, lane: "server/berthd/unit_test.go", has: "journalctl"},
		"journalctl -u berthd BERTH_EVENT=peer BERTH_KIND=plugin -o json | jq -r '[.BERTH_STATE, .BERTH_RESOURCE] | @tsv'": {
			why: needsSystemd, lane: "server/berthd/unit_test.go", has: "journalctl"},
		"berthctl reload --dry-run": {before: "printf 'limits: {call: 1m0s}\\nstrictState: true\\n' >> /etc/berth/berthd.yaml\n",
			want: `limits.call  "2m0s"  "1m0s"  `},
		"systemctl reload berthd": {why: needsSystemd, lane: "server/berthd/reload_test.go", has: "SIGHUP"},
	}},
	{page: "hotplug.md", setup: daemon, end: ended, files: map[string]string{"berthd.yaml": configured}, treated: map[string]treatment{
		"echo 0 > /sys/devices/system/cpu/cpu5/online": {why: needsKernel, lane: "server/berthd/plug_test.go", has: "cpu/online"},
		"berthctl hugepages set --node 1 2Mi=512":      {why: needsKernel, lane: "server/berthd/hotplug_test.go", has: "SetHugePages"},
	}},
	{page: "live.md", end: ended, files: map[string]string{
		"berthd.yaml": configured, "trainer.yaml": podOf("trainer", "main", "2"), "big.yaml": podOf("big", "main", "4"),
	}, setup: daemon + "berthctl admit -f trainer.yaml\n", treated: map[string]treatment{
		"berthctl resize trainer main --cpu 4": {want: "default/trainer resized"},
	}},
	{page: "berthctl.md", end: ended, files: map[string]string{
		"berthd.yaml": configured, "pods/web.yaml": podOf("web", "main", "2"),
		"web.yaml": strings.Replace(podOf("web", "main", "2"), "spec: {", "spec: {nodename: x, ", 1),
	}, setup: daemon, treated: map[string]treatment{
		"berthctl admit -f web.yaml --dry-run --strict": {code: 1, want: `unknown field "spec.nodename" \(--strict\)`},
	}},
	{page: "../README.md", files: map[string]string{"config.yaml": kubelet}, setup: `mkdir -p /var/lib/kubelet
cp config.yaml /var/lib/kubelet/config.yaml
`, treated: map[string]treatment{
		"make demo": {why: needsBuild, lane: "hack/quickstart/demo_test.go", has: "func TestDemo("},
		"make test": {why: needsBuild, lane: ".ci/run", has: "make test"},
		"berthd --cpu-manager-policy static --reserved-cpus 0 --topology-manager-policy restricted": {parsed: true},
		"berthd --kubelet-config /var/lib/kubelet/config.yaml":                                      {parsed: true},
		"berthd --try --kubelet-config /var/lib/kubelet/config.yaml": {why: "it does not end",
			lane: "hack/quickstart/pages_test.go", has: "func TestReadmeTry("},
		"kubectl get pod web -o json | jq '{pod: .}' | grpcurl -plaintext -unix -allow-unknown-fields -d @ /run/berth/berth.sock " +
			"berth.admission.v1.AdmissionService/Admit": {
			why: needsCluster, lane: "hack/apiconformance/grpcurl_test.go", has: "func TestGrpcurl("},
	}},
	{page: "rejected.md", treated: map[string]treatment{
		"berthctl simulate --machine 2s1n8c2t --cpu-manager-policy static --reserved-cpus 0,16 " +
			"--topology-manager-policy single-numa-node --device example.com/gpu=gpu0@0,gpu1@1 " +
			"-f deploy/examples/pages/worker.yaml": {code: 3, want: "it would fit"},
	}},
	{page: "look.md", setup: daemon, end: ended, files: map[string]string{"berthd.yaml": configured}, treated: map[string]treatment{
		"berthctl web": {endless: true, want: `http://127\.0\.0\.1:8087/`},
		"ssh -o ExitOnForwardFailure=yes -L 127.0.0.1:8087:127.0.0.1:8087 HOST berthctl web --no-browser": {
			why: "it needs another machine", lane: "clients/berthctl/web_test.go", has: "--no-browser"},
	}},
	{page: "node.md", treated: map[string]treatment{
		"kubectl apply -k deploy/kubernetes": {why: needsCluster, lane: installLane, has: `"apply", "-k"`},
		"kubectl -n berth-system rollout status daemonset/berth": {
			why: needsCluster, lane: installLane, has: `"rollout", "status"`},
		"kubectl -n berth-system exec daemonset/berth -c berthd -- berthctl get pods": {
			why: needsCluster, lane: "clients/nri/cluster_test.go", has: `"get", "pods"`},
		"kubectl delete -k deploy/kubernetes": {why: needsCluster, lane: installLane, has: `"delete", "-k"`},
	}},
	{page: "tracing.md", treated: map[string]treatment{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 berthd --config /etc/berth/berthd.yaml": {why: "it does not end",
			lane: "server/berthd/tracing_test.go", has: "OTEL_EXPORTER_OTLP_ENDPOINT"},
	}},
	{page: "configuration.md", setup: daemon, end: ended, files: map[string]string{"berthd.yaml": configured}},
	{page: "kubernetes.md", node: true, end: "trap - EXIT\n", setup: tried + `cp cpu_manager_state /var/lib/kubelet
sed -i 's/Policy: .*/Policy: none/' /var/lib/kubelet/config.yaml
`, files: map[string]string{
		"pods.json": `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod",
	"metadata": {"name": "db", "namespace": "shop", "uid": "u-db"}, "spec": {"containers": [{"name": "app",
	"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]}, "status": {"phase": "Running", "qosClass": "Guaranteed"}}]}
`,
		"cpu_manager_state": `{"policyName":"static","defaultCpuSet":"0-2,4-7","entries":{"u-db":{"app":"3"}},"checksum":0}`,
	}, treated: map[string]treatment{
		"kubectl apply -k deploy/kubernetes":                     {why: needsCluster, lane: installLane, has: `"apply", "-k"`},
		"kubectl -n berth-system rollout status daemonset/berth": {why: needsCluster, lane: installLane, has: `"rollout", "status"`},
		"kubectl -n berth-system exec daemonset/berth -c berthd -- berthctl get pods": {
			why: needsCluster, lane: "clients/nri/cluster_test.go", has: `"get", "pods"`},
		"helm …":                     {why: needsCluster, lane: "hack/manifests/chart_test.go", has: "hack/tools/helm"},
		"kubectl describe node NODE": {why: needsCluster, lane: installLane, has: "BerthReady"},
		"kubectl -n berth-system logs daemonset/berth -c berth-nri": {
			why: needsCluster, lane: observeLane, has: `"logs", "daemonset/`},
		"kubectl -n berth-system exec daemonset/berth -c berthd -- berthctl describe node": {
			why: needsCluster, lane: "clients/nri/daemonset_test.go", has: `"describe", "node"`},
		"kubectl -n berth-system get pods -o custom-columns=…": {
			why: needsCluster, lane: installLane, has: "status.initContainerStatuses[0].state.terminated.message"},
		"kubectl patch node NODE --subresource=status -p …": {
			why: needsCluster, lane: installLane, has: `{"status":{"conditions":[{"type":"BerthReady","$patch":"delete"}]}}`},
		"kubectl create namespace berth-system": {why: needsCluster, lane: manifestsLane, has: "Namespace"},
		"kubectl -n berth-system create secret generic berth-metrics …": {
			why: needsCluster, lane: manifestsLane, has: "berth-metrics"},
		"kubectl apply -k deploy/kubernetes/overlays/…": {why: needsCluster, lane: manifestsLane, has: "deploy/kubernetes/overlays/*"},
		"kubectl apply -k deploy/kubernetes/crd":        {why: needsCluster, lane: "clients/nri/daemonset_test.go", has: "crd"},
		"kubectl get noderesourcetopologies …":          {why: needsCluster, lane: schedulerLane, has: "noderesourcetopologies"},
		"kubectl delete noderesourcetopologies --all":   {why: needsCluster, lane: schedulerLane, has: "noderesourcetopologies"},
		"kubectl delete -f deploy/kubernetes/overlays/node-resource-topology/…": {
			why: needsCluster, lane: "clients/nri/topology_test.go", has: "/overlays/node-resource-topology/rbac.yaml"},
		"kubectl delete -k deploy/kubernetes": {why: needsCluster, lane: installLane, has: `"delete", "-k"`},
		"kubectl get pods -A --field-selector spec.nodeName=NODE -o json > pods.json": {
			why: needsCluster, lane: "clients/nri/cluster_test.go", has: "--field-selector"},
		"berthctl ledger import --kind cpu -f /var/lib/kubelet/cpu_manager_state --pods pods.json --owner kubernetes": {want: "1 pod taken over"},
		"kill %1": {want: "kill %1"},
	}},
	{page: "dra.md", treated: map[string]treatment{
		"kubectl apply -k deploy/kubernetes/overlays/dra": {why: needsCluster, lane: claimsLane, has: `"kubernetes/overlays/"+name`},
		"kubectl -n berth-system rollout status daemonset/berth": {
			why: needsCluster, lane: claimsLane, has: `"rollout", "status", "daemonset/berth"`},
		"kubectl get resourceslices": {why: needsCluster, lane: "clients/nri/clusterclaims_test.go", has: `"get", "resourceslices"`},
		"kubectl get pod train -o …": {
			why: needsCluster, lane: "clients/nri/clusterhealth_test.go", has: "AllocatedResourcesStatus"},
	}},
	{page: "kubectl.md", treated: map[string]treatment{
		"kubectl berth …": {why: needsCluster, lane: "clients/nri/clusterinstallnodes_test.go", has: `"berth", "get", "pods"`},
	}},
	{page: "alerts.md", treated: map[string]treatment{
		"kubectl …": {why: needsCluster, lane: "hack/monitoring/monitoring_test.go", has: "func TestRunbooksOfClusters("},
	}},
	{page: "berthlet.md", treated: map[string]treatment{
		"berthd …":   {why: needsBuild, lane: packageLane, has: "berthd"},
		"berthlet …": {why: needsBuild, lane: packageLane, has: `"berthlet", "exec"`},
	}},
	{page: "runtime.md", treated: map[string]treatment{
		"berthd …":   {why: needsEngine, lane: criLane, has: "--runtime-endpoint"},
		"berthlet …": {why: needsEngine, lane: criLane, has: "--runtime-endpoint"},
	}},
}

// pagesRunElsewhere are the pages whose commands other tests run, with a part of what these have.
var pagesRunElsewhere = map[string][2]string{
	"cli-examples.md": {"clients/berthctl/docs_test.go", "cli-examples.md"},
	"cli-output.md":   {"clients/berthctl/docs_test.go", "cli-output.md"},
	"incident.md":     {"hack/quickstart/incident_test.go", "incident.md"},
	"nri.md":          {"hack/quickstart/node_test.go", "nri.md"},
	"performance.md":  {"hack/bench/main.go", "-against"}, // they take minutes
	"plugin.md":       {"hack/quickstart/pages_test.go", "plugin.md"},
	"walk.md":         {walkLane, "walk.md"},
}

// TestEveryPageOfCommands: each page with commands is in one of the tables.
func TestEveryPageOfCommands(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, path := range pages {
		page := filepath.Base(path)
		here := slices.ContainsFunc(commandsOfPages, func(p pageCommands) bool { return p.page == page })
		other, elsewhere := pagesRunElsewhere[page]
		if !here && !elsewhere && slices.ContainsFunc(commandsOf(t, page), isCommand) {
			t.Errorf("docs/%s has commands: add it to commandsOfPages", page)
		}
		if elsewhere {
			if text, err := os.ReadFile(filepath.Join("../..", other[0])); err != nil || !strings.Contains(string(text), other[1]) {
				t.Errorf("docs/%s: %s does not have %q: %v", page, other[0], other[1], err)
			}
		}
		if text, err := os.ReadFile(path); err != nil || indented.Match(text) {
			t.Errorf("docs/%s: write code between lines of three backquotes, so that its commands are found: %v", page, err)
		}
	}
}

// indented is code without a fence.
var indented = regexp.MustCompile(`(?m)^\n    (berth|kubectl|helm|make|\$ )`)

// isCommand tells a command from output, a drawing, or a part of a file.
func isCommand(line string) bool {
	return regexp.MustCompile(`^(sudo )?(berth[a-z-]*|kubectl|helm|make|go|git|curl|openssl|systemctl|crictl|ctr|apt) `).MatchString(line)
}

// commandsOf gives the commands of a page: those of its sessions, and the lines of its other blocks, without their comments.
func commandsOf(t *testing.T, page string) (commands []string) {
	t.Helper()
	for _, b := range codeOf(t, page) {
		if b.language != "" && b.language != "sh" {
			continue
		}
		session := len(b.lines) > 0 && strings.HasPrefix(b.lines[0], "$ ")
		whole := ""
		for _, line := range b.lines {
			line, typed := strings.CutPrefix(line, "$ ")
			if session && !typed {
				continue
			}
			if line, _, _ = strings.Cut(line, " #"); strings.HasPrefix(line, "#") {
				continue
			}
			whole += strings.TrimSpace(line)
			if rest, more := strings.CutSuffix(whole, `\`); more {
				whole = rest
				continue
			}
			if strings.HasSuffix(whole, "|") {
				whole += " "
				continue
			}
			if whole != "" {
				commands = append(commands, whole)
			}
			whole = ""
		}
	}
	return commands
}

// treatmentOf looks up a command.
func (c pageCommands) treatmentOf(command string) treatment {
	for key, t := range c.treated {
		if matches(key, command) {
			return t
		}
	}
	return treatment{}
}

// matches reports whether a key of a table stands for a command.
func matches(key, command string) bool {
	prefix, many := strings.CutSuffix(key, "…")
	return key == command || many && strings.HasPrefix(command, prefix)
}

// runs are the programs that run here: they do nothing to the machine beyond what the reader has in place of it.
var runs = []string{"berthctl", "berthd", "kill", "mkdir", "openssl", "rm"}

// mayRun reports whether a command is one of those programs, as root or not.
func mayRun(command string) bool {
	if command == "sudo -v" || strings.HasPrefix(command, "echo ") && !strings.Contains(command, "> /") {
		return true
	}
	program, _, _ := strings.Cut(strings.TrimPrefix(command, "sudo "), " ")
	return slices.Contains(runs, program) && !strings.ContainsAny(command, "|;`$") && !strings.Contains(command, "&&")
}

// TestMayRun: what could change the machine of a developer has to be in the table.
func TestMayRun(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]bool{
		"berthctl get pods": true, "sudo berthd --try &": true, "sudo berthctl check --kubelet --pods pods.json": true,
		"kubectl delete pod a": false, "sudo apt install ./x": false, "berthctl version | sh": false, "berthctl a && reboot": false,
		"berthd $(reboot)": false, "berthctlx": false, "PYTHONPATH=x python3 a": false, "": false,
		"echo 0 > /sys/devices/system/cpu/cpu5/online": false, "echo x > file": true, "sudo -v": true,
	} {
		if got := mayRun(command); got != want {
			t.Errorf("%q: %t", command, got)
		}
	}
}

// step is a command in a script.
func (c treatment) step(command string) string {
	if c.why != "" {
		return ""
	}
	if c.parsed {
		command = strings.Replace(command, "berthd ", "berthd config validate ", 1)
	}
	if c.endless {
		return c.before + fmt.Sprintf("%s > endless 2>&1 &\nending=$!\nuntil grep -Eq '%s' endless; do kill -0 $ending; sleep 0.1; done\n"+
			"kill $ending\nwait $ending || :\ncat endless\n", command, c.want)
	}
	return c.before + fmt.Sprintf("code=0\n%s || code=$?\n[ $code = %d ]\n", command, c.code)
}

// TestPagesOfCommands runs each command of the pages as it is written, or knows why it cannot run here and where it does.
func TestPagesOfCommands(t *testing.T) {
	for _, row := range commandsOfPages {
		t.Run(row.page, func(t *testing.T) {
			commands := commandsOf(t, row.page)
			if len(commands) == 0 {
				t.Fatal("the page has no commands")
			}
			var script strings.Builder
			for _, command := range commands {
				c := row.treatmentOf(command)
				if c.why == "" && !mayRun(command) {
					t.Fatalf("%s: say in commandsOfPages why it does not run here, and where it does", command)
				}
				if strings.HasSuffix(command, "&") {
					script.WriteString(command + "\n")
				} else {
					script.WriteString(c.step(command))
				}
				if c.why != "" {
					text, err := os.ReadFile(filepath.Join("../..", c.lane))
					if err != nil || !strings.Contains(string(text), c.has) {
						t.Errorf("%s: %s, and %s does not have %q: %v", command, c.why, c.lane, c.has, err)
					}
				}
			}
			for _, command := range slices.Sorted(maps.Keys(row.treated)) {
				if !slices.ContainsFunc(commands, func(c string) bool { return matches(command, c) }) {
					t.Errorf("the page has no command %s", command)
				}
			}
			files := maps.Clone(row.files)
			if files == nil {
				files = map[string]string{}
			}
			r := newReader(t, files)
			setup := row.setup
			if row.node {
				setup = nodeOf(kubeletnode.New(t)) + setup
			}
			out := r.run(setup + script.String() + row.end)
			for command, c := range row.treated {
				if c.want != "" && !regexp.MustCompile(c.want).MatchString(out) {
					t.Errorf("%s: the output lacks %q:\n%s", command, c.want, out)
				}
			}
		})
	}
}

// nodeOf makes the machine a made-up node.
func nodeOf(root string) string {
	return strings.ReplaceAll(`mkdir -p /var/lib/kubelet
cp ROOT/var/lib/kubelet/config.yaml /var/lib/kubelet
mount --bind ROOT/sys/devices/system /sys/devices/system
`, "ROOT", root)
}
