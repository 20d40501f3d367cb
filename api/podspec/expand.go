package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func typesUID(uid string) types.UID { return types.UID(uid) }

// variable gives the value of an environment variable; false where only an API server or a running pod would know it.
func variable(p *corev1.Pod, e *corev1.EnvVar) (string, bool) {
	if e.ValueFrom == nil {
		return e.Value, true
	}
	if e.ValueFrom.FieldRef == nil {
		return "", false
	}
	path := e.ValueFrom.FieldRef.FieldPath
	switch path {
	case "metadata.name":
		return p.Name, true
	case "metadata.namespace":
		return p.Namespace, true
	case "metadata.uid":
		return string(p.UID), true
	}
	if key, ok := keyed(path, "metadata.labels"); ok {
		return p.Labels[key], true
	}
	if key, ok := keyed(path, "metadata.annotations"); ok {
		return p.Annotations[key], true
	}
	return "", false
}

// keyed finds KEY in a path of the form prefix['KEY'].
func keyed(path, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(path, prefix+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

// expand replaces $(NAME) by the value of a variable that is set. "$$" stands for "$", and a reference to a variable
// that is not set is left as it is: the rules of env, command and args in the Kubernetes API.
func expand(text string, env []Variable) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		text = after
		if rest, ok := strings.CutPrefix(after, "$"); ok {
			out.WriteString("$")
			text = rest
			continue
		}
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
		value, set := lookup(env, name)
		if !strings.HasPrefix(after, "(") || !closed || !set {
			out.WriteString("$")
			continue
		}
		out.WriteString(value)
		text = rest
	}
}

// lookup finds the last variable of a name: a later one replaces an earlier one.
func lookup(env []Variable, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if env[i].Name == name {
			return env[i].Value, true
		}
	}
	return "", false
}
