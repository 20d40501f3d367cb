package command

import (
	"strings"

	"github.com/spf13/pflag"
)

// OwnerFlag declares the flag for the owner of pods.
func OwnerFlag(f *pflag.FlagSet, owner *string, what string) {
	f.StringVar(owner, "owner", "", what+": the name of an agent, such as berthlet or kubernetes (default \"default\")")
}

// Namespaces is the flags that select the namespaces of pods.
type Namespaces struct {
	Namespace string
	all       bool
}

func (n *Namespaces) Flags(f *pflag.FlagSet, what string) {
	f.StringVarP(&n.Namespace, "namespace", "n", "", what)
	f.BoolVarP(&n.all, "all-namespaces", "A", false, "pods of all namespaces, which is the default")
}

// Check refuses flags that contradict each other.
func (n *Namespaces) Check(verb string) error {
	if n.all && n.Namespace != "" {
		return Usagef(verb, "--all-namespaces contradicts --namespace %s", n.Namespace)
	}
	return nil
}

// Pod gives the name of a pod that was named in a namespace.
func (n *Namespaces) Pod(name string) string {
	name = WithoutPod(name)
	if n.Namespace == "" || strings.Contains(name, "/") {
		return name
	}
	return n.Namespace + "/" + name
}

// InNamespace is the namespace of verbs about one pod.
const InNamespace = "namespace of the pod, if POD is only its name"
