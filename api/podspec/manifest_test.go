package podspec_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/berthd/berth/api/podspec"
)

func manifests(t *testing.T, text string) []podspec.Manifest {
	t.Helper()
	out, err := podspec.DecodeManifests(strings.NewReader(text), podspec.Options{GenerateUID: true})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const full = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, uid: u1, labels: {app: web}, annotations: {a/b: note}}
spec:
  restartPolicy: Always
  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 5}
  volumes:
  - {name: host, hostPath: {path: /srv}}
  - {name: scratch, emptyDir: {}}
  - {name: implied}
  initContainers:
  - {name: init, image: i}
  - {name: side, image: s, restartPolicy: Always}
  containers:
  - name: main
    image: m
    command: [/m, $(NAME), $$(NAME), $(NONE), "$", a$(NAME, $(NAME)$(UID)]
    args: ["$(TWICE)"]
    workingDir: /w
    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: SPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['a/b']"}}}
    - {name: TWICE, value: $(NAME)-$(LATER)}
    - {name: LATER, value: x}
    volumeMounts:
    - {name: host, mountPath: /host, subPath: a/b, readOnly: true}
    - {name: scratch, mountPath: /scratch, subPathExpr: $(NAME)}
    securityContext: {runAsUser: 7, privileged: true, readOnlyRootFilesystem: true,
      allowPrivilegeEscalation: false, capabilities: {add: [SYS_TIME], drop: [ALL]}}
  - name: once
    image: o
    restartPolicy: Never
`

func TestManifest(t *testing.T) {
	t.Parallel()
	m := manifests(t, full)[0]
	if m.Hostname != "web" || m.Pod.GetMetadata().GetUid() != "u1" || len(m.Problems) > 0 {
		t.Errorf("%+v", m)
	}
	if len(m.Notes) > 0 {
		t.Errorf("notes %q", m.Notes)
	}
	five := int64(5)
	if want := (podspec.Shared{VolumeGroup: &five, Groups: []int64{5}}); !reflect.DeepEqual(m.Shared, want) {
		t.Errorf("shared %+v", m.Shared)
	}
	if got, want := m.Volumes, []podspec.Volume{{"host", "/srv"}, {Name: "scratch"}, {Name: "implied"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("volumes %+v", got)
	}
	var policies []string
	for _, l := range m.Launches {
		policies = append(policies, fmt.Sprintf("%s %v %s", l.Name, l.Init, l.RestartPolicy))
	}
	if got, want := policies, []string{"init true OnFailure", "side true Always", "main false Always",
		"once false Never"}; !reflect.DeepEqual(got, want) {
		t.Errorf("policies %q", got)
	}
	seven, thousand := int64(7), int64(1000)
	want := podspec.Launch{
		Name: "main", Image: "m", RestartPolicy: "Always", WorkingDir: "/w",
		Command: []string{"/m", "web", "$(NAME)", "$(NONE)", "$", "a$(NAME", "webu1"}, Args: []string{"web-$(LATER)"},
		Env: []podspec.Variable{{"NAME", "web"}, {"UID", "u1"}, {"SPACE", "shop"}, {"LABEL", "web"}, {"NOTE", "note"},
			{"TWICE", "web-$(LATER)"}, {"LATER", "x"}},
		Mounts: []podspec.VolumeMount{
			{Volume: "host", Path: "/host", SubPath: "a/b", ReadOnly: true}, {Volume: "scratch", Path: "/scratch", SubPath: "web"},
		},
		Security: podspec.Security{
			User: &seven, Group: &thousand, Privileged: true, ReadOnlyRoot: true, NoNewPrivileges: true,
			Add: []string{"SYS_TIME"}, Drop: []string{"ALL"},
		},
	}
	if got := m.Launches[2]; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestDocument shows that a document is the pod again, however it was written.
func TestDocument(t *testing.T) {
	t.Parallel()
	m := manifests(t, full)[0]
	again := manifests(t, string(m.Document))[0]
	if !reflect.DeepEqual(again.Document, m.Document) || !reflect.DeepEqual(again.Launches, m.Launches) {
		t.Errorf("%s\nbecame\n%s", m.Document, again.Document)
	}
	reordered := manifests(t, strings.Replace(full, "image: o\n    restartPolicy: Never", "restartPolicy: Never\n    image: o", 1))[0]
	if !reflect.DeepEqual(reordered.Document, m.Document) {
		t.Error("another order of fields is another pod")
	}
	other := manifests(t, strings.Replace(full, "image: o", "image: p", 1))[0]
	if reflect.DeepEqual(other.Document, m.Document) {
		t.Error("another image is the same pod")
	}
	made := manifests(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {restartPolicy: Never, initContainers: [{name: i}], containers: [{name: c}]}")[0]
	if uid := made.Pod.GetMetadata().GetUid(); uid == "" || !strings.Contains(string(made.Document), uid) {
		t.Errorf("a uid that was made is not in %s", made.Document)
	}
	if got := made.Launches[0].RestartPolicy + made.Launches[1].RestartPolicy; got != "NeverNever" {
		t.Errorf("policies %s", got)
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ spec, problem, note string }{
		{"volumes: [{name: v, secret: {secretName: s}}], containers: [{name: c}]", `spec.volumes[0] "v"`, ""},
		{"volumes: [{name: v, emptyDir: {medium: Memory}}], containers: [{name: c}]", `spec.volumes[0] "v"`, ""},
		{"containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]",
			`spec.containers[0].volumeMounts[0]: there is no volume "v"`, ""},
		{"volumes: [{name: v}], containers: [{name: c, volumeMounts: [{name: v, mountPath: /v, subPath: ../x}]}]",
			`spec.containers[0].volumeMounts[0]: "../x"`, ""},
		{"containers: [{name: c, envFrom: [{secretRef: {name: s}}]}]", "spec.containers[0].envFrom", ""},
		{"containers: [{name: c, env: [{name: E, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]", `spec.containers[0].env[0] "E"`, ""},
		{"containers: [{name: c, env: [{name: E, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}]", `spec.containers[0].env[0] "E"`,
			""},
		{"initContainers: [{name: i, livenessProbe: {exec: {command: [x]}}}], containers: [{name: c}]", "",
			"spec.initContainers[0].livenessProbe is ignored"},
		{"containers: [{name: c, tty: true}]", "", "spec.containers[0].tty is ignored"},
		{"securityContext: {runAsNonroot: true}, containers: [{name: c}]", `unknown field "spec.securityContext.runAsNonroot"`, ""},
		{"securitycontext: {runAsNonRoot: true}, containers: [{name: c}]", `unknown field "spec.securitycontext"`, ""},
		{"containers: [{name: c, securityContext: {capabilities: {Drop: [ALL]}}}]",
			`unknown field "spec.containers[0].securityContext.capabilities.Drop"`, ""},
	} {
		m := manifests(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {"+row.spec+"}")[0]
		if got := strings.Join(m.Problems, "\n"); !strings.HasPrefix(got, row.problem) || (got == "") != (row.problem == "") {
			t.Errorf("%s: problems %q, want %q", row.spec, got, row.problem)
		}
		if got := strings.Join(m.Notes, "\n"); got != row.note {
			t.Errorf("%s: notes %q, want %q", row.spec, got, row.note)
		}
	}
	for field, text := range map[string]string{
		"metadata.uid":                "metadata: {name: a, uid: ../../x}\nspec: {containers: [{name: c}]}",
		"metadata.name":               "metadata: {name: a/b}\nspec: {containers: [{name: c}]}",
		"metadata.namespace":          "metadata: {name: a, namespace: ..}\nspec: {containers: [{name: c}]}",
		"spec.volumes[0].name":        "metadata: {name: a}\nspec: {volumes: [{name: ../v}], containers: [{name: c}]}",
		"spec.initContainers[0].name": "metadata: {name: a}\nspec: {initContainers: [{name: .}], containers: [{name: c}]}",
		"spec.containers[0].name":     "metadata: {name: a}\nspec: {containers: [{name: \"c\\0d\"}]}",
	} {
		_, err := podspec.DecodeManifests(strings.NewReader("apiVersion: v1\nkind: Pod\n"+text), podspec.Options{GenerateUID: true})
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := podspec.DecodeManifests(strings.NewReader("kind: Secret"), podspec.Options{}); err == nil {
		t.Error("a secret is no pod")
	}
}
