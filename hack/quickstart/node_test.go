package quickstart

import (
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/containerd"
)

// kubelet is the configuration of a kubelet whose managers are off and that reserves a CPU.
const kubelet = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
reservedSystemCPUs: "0"
failSwapOn: false
`

// TestContainerdNodePage runs the commands of the page for operators of Kubernetes nodes, as written, beside a containerd. There is
// no kubelet: berthd and berth-nri begin before it, too.
func TestContainerdNodePage(t *testing.T) {
	d := containerd.Prepare(t, false)
	if d.Old {
		t.Skip("needs containerd 2 or later, and this is containerd 1, which has no NRI here")
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := newReader(t, map[string]string{"config.yaml": kubelet})
	commands := blocks(t, "nri.md")
	if len(commands) != 2 {
		t.Fatalf("%d blocks of commands, want a beginning and the way back", len(commands))
	}
	// What a node has: the kubelet's files, and the runtime's socket at its usual place.
	const node = `
mkdir -p /var/lib/kubelet/device-plugins /var/lib/kubelet/plugins_registry /var/lib/kubelet/pod-resources /run/nri /run/upper /run/work
cp config.yaml /var/lib/kubelet/config.yaml
mount -t tmpfs tmpfs /run/upper
mkdir /run/upper/upper /run/upper/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/upper/upper,workdir=/run/upper/work overlay /etc
mkdir -p /etc/kubernetes/manifests
ln -s NRI /run/nri/nri.sock
exec > >(tee log) 2>&1
`
	// And what the page says: berthd answers, and the runtime has called berth-nri.
	const then = `
until grep -q -m1 'onfigur' log; do berthctl get node > /dev/null; done
`
	const gone = `
[ ! -e /run/berth ]
[ ! -e /var/lib/berth ]
`
	out := r.run(strings.ReplaceAll(node, "NRI", d.NRI) + commands[0] + then + commands[1] + gone)
	if !strings.Contains(out, "no pod is admitted") {
		t.Errorf("got\n%s", out)
	}
}
