package cluster

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Names of the first node and of the administrator.
const (
	Node  = "n1"
	admin = "admin"
)

// user is one of the API server's, with a group. name is that of its kubeconfig.
type user struct{ name, user, group string }

func (c *Cluster) users() []user {
	users := []user{
		{admin, "admin", "system:masters"},
		{"scheduler", "system:kube-scheduler", ""},
		{"controllers", "system:kube-controller-manager", ""},
	}
	for _, h := range c.Hosts() {
		users = append(users, user{"kubelet-" + h.Name, "system:node:" + h.Name, "system:nodes"})
	}
	return users
}

// APIServer is its address in the cluster's network.
const APIServer = "https://127.0.0.1:6443"

// kubeconfig is a client's configuration in Kubernetes' own format. The API server signs its own
// certificate.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "SERVER", insecure-skip-tls-verify: true}}]
users: [{name: me, user: {token: TOKEN}}]
contexts: [{name: test, context: {cluster: test, user: me}}]
current-context: test
`

// schedulerConfig is the scheduler's configuration. Pods that fit again are scheduled soon.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: DIR/scheduler.kubeconfig}
leaderElection: {leaderElect: false}
podMaxBackoffSeconds: 1
`

// kubeletConfig is the configuration of a node's kubelet.
func (c *Cluster) kubeletConfig(h *Host) map[string]any {
	driver, root := "cgroupfs", h.Cgroup
	if c.Options.Systemd {
		driver, root = "systemd", "/"
	}
	runtime := c.Runtime
	if h.Containerd != nil {
		runtime = h.Containerd.Socket
	}
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":  map[string]any{"mode": "AlwaysAllow"},
		"cgroupDriver":   driver, "cgroupRoot": root, "failCgroupV1": false, "failSwapOn": false,
		"containerRuntimeEndpoint": "unix://" + runtime,
		"evictionHard": map[string]any{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
		"localStorageCapacityIsolation": false, "makeIPTablesUtilChains": false,
		"podLogsDir": h.Path("logs"), "volumePluginDir": h.Path("volumes"), "staticPodPath": h.Path("manifests"),
		"nodeStatusUpdateFrequency": "1s", "syncFrequency": "10s",
	}
	if len(c.Options.FeatureGates) > 0 {
		gates := map[string]bool{}
		for _, name := range c.Options.FeatureGates {
			gates[name] = true
		}
		config["featureGates"] = gates
	}
	for name, value := range c.Options.Kubelet {
		config[name] = value
	}
	return config
}

// configure writes the files that the programs read.
func (c *Cluster) configure() error {
	var tokens strings.Builder
	files := map[string]string{"scheduler.yaml": strings.ReplaceAll(schedulerConfig, "DIR", c.dir)}
	c.tokens = map[string]string{}
	for _, u := range c.users() {
		token := rand.Text()
		c.tokens[u.name] = token
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", token, u.user, u.name, u.group)
		files[u.name+".kubeconfig"] = strings.NewReplacer("SERVER", APIServer, "TOKEN", token).Replace(kubeconfig)
	}
	files["tokens.csv"] = tokens.String()
	if _, err := os.Stat(c.Path("accounts.key")); errors.Is(err, fs.ErrNotExist) {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return err
		}
		files["accounts.key"] = string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	}
	for name, content := range files {
		if err := os.WriteFile(c.Path(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	for _, h := range c.Hosts() {
		if err := c.configureKubelet(h); err != nil {
			return err
		}
	}
	return nil
}

// configureKubelet writes the files that a node's kubelet reads.
func (c *Cluster) configureKubelet(h *Host) error {
	text, err := json.Marshal(c.kubeletConfig(h))
	if err != nil {
		return err
	}
	access := strings.NewReplacer("SERVER", "https://"+Address+":6443", "TOKEN", c.tokens["kubelet-"+h.Name]).Replace(kubeconfig)
	for name, content := range map[string]string{"kubelet.json": string(text), "kubelet.kubeconfig": access} {
		if err := os.WriteFile(h.Path(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{"logs", "volumes", "manifests"} {
		if err := os.MkdirAll(h.Path(name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// kubeletFlags is the command line of a node's kubelet. Its certificates are where they are by default: /var/lib is the node's own.
func (h *Host) kubeletFlags() []string {
	return []string{
		"--config", h.Path("kubelet.json"), "--kubeconfig", h.Path("kubelet.kubeconfig"), "--root-dir", "/var/lib/kubelet",
		"--hostname-override", h.Name, "--node-ip", h.Address, "--v", "2",
	}
}

// flags are the programs' command lines.
func (c *Cluster) flags() map[string][]string {
	const etcd = "http://127.0.0.1:2379"
	controllers := "*"
	if c.Controllers != nil {
		controllers = strings.Join(c.Controllers, ",")
	}
	flags := map[string][]string{
		"etcd": {
			"--data-dir", c.Path("etcd"), "--unsafe-no-fsync", "--log-level", "warn",
			"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", "http://127.0.0.1:2380",
		},
		"kube-apiserver": {
			"--etcd-servers", etcd, "--cert-dir", c.Path("certificates"), "--token-auth-file", c.Path("tokens.csv"),
			"--authorization-mode", "Node,RBAC", "--advertise-address", Address, "--endpoint-reconciler-type", "none",
			"--service-cluster-ip-range", "10.98.0.0/16", "--service-account-issuer", "https://kubernetes.default.svc",
			"--service-account-key-file", c.Path("accounts.key"), "--service-account-signing-key-file", c.Path("accounts.key"),
			"--allow-privileged", fmt.Sprintf("--watch-cache=%t", !c.Slow), "--kubelet-preferred-address-types", "InternalIP",
		},
		"kube-scheduler": {"--config", c.Path("scheduler.yaml"), "--secure-port", "0"},
		"kube-controller-manager": {
			"--kubeconfig", c.Path("controllers.kubeconfig"), "--controllers", controllers, "--use-service-account-credentials",
			"--leader-elect=false", "--secure-port", "0",
			"--service-account-private-key-file", c.Path("accounts.key"), "--root-ca-file", c.Path("certificates", "apiserver.crt"),
		},
	}
	for _, program := range []string{"kube-apiserver", "kube-scheduler", "kube-controller-manager"} {
		for _, name := range c.Options.FeatureGates {
			flags[program] = append(flags[program], "--feature-gates", name+"=true")
		}
	}
	return flags
}
