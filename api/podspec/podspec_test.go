package podspec_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
)

const whole = `
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  uid: 2f1c8a52-0000-4000-8000-000000000001
  labels: {app: web}
  annotations: {note: "yes"}
  creationTimestamp: "2026-11-20T10:00:00Z"
spec:
  restartPolicy: Never
  priority: 7
  priorityClassName: high
  hostNetwork: true
  hostPID: true
  hostIPC: true
  nodeName: n1
  runtimeClassName: kata
  terminationGracePeriodSeconds: 30
  overhead: {cpu: 250m}
  resources: {requests: {cpu: 3}}
  volumes: [{name: v, emptyDir: {}}]
  os: {name: linux}
  resourceClaims: [{name: nic, resourceClaimName: nic-1}, {name: card, resourceClaimTemplateName: cards}]
  ephemeralContainers: [{name: debug, image: registry.example.com/debug:1}]
  initContainers:
  - name: log
    restartPolicy: Always
    resources: {requests: {cpu: 0.5, memory: 100Mi}, claims: [{name: nic, request: one}]}
  containers:
  - name: app
    image: registry.example.com/web:1
    resources:
      limits: {cpu: 2, memory: 1073741824, example.com/gpu: "1", hugepages-2Mi: 4Mi}
    resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]
status: {qosClass: Burstable, phase: Running}
`

const wholeWant = `{
  "metadata": {
    "name": "web", "namespace": "shop", "uid": "2f1c8a52-0000-4000-8000-000000000001",
    "labels": {"app": "web"}, "annotations": {"note": "yes"}
  },
  "spec": {
    "restartPolicy": "Never", "priority": 7, "priorityClassName": "high",
    "hostNetwork": true, "hostPID": true, "hostIPC": true, "nodeName": "n1", "runtimeClassName": "kata",
    "terminationGracePeriodSeconds": "30",
    "overhead": {"cpu": "250m"},
    "resources": {"requests": {"cpu": "3"}}, "os": {"name": "linux"},
    "resourceClaims": [{"name": "nic", "resourceClaimName": "nic-1"}, {"name": "card", "resourceClaimTemplateName": "cards"}],
    "ephemeralContainers": [{"name": "debug", "image": "registry.example.com/debug:1"}],
    "initContainers": [
      {"name": "log", "restartPolicy": "Always",
       "resources": {"requests": {"cpu": "500m", "memory": "100Mi"}, "claims": [{"name": "nic", "request": "one"}]}}
    ],
    "containers": [
      {"name": "app", "image": "registry.example.com/web:1",
       "resources": {"limits": {"cpu": "2", "memory": "1073741824", "example.com/gpu": "1", "hugepages-2Mi": "4Mi"}},
       "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}
    ]
  },
  "status": {"qosClass": "Burstable"}
}`

func TestDecodeWholePod(t *testing.T) {
	t.Parallel()
	var dropped []string
	pods, err := podspec.Decode(strings.NewReader(whole), podspec.Options{Dropped: func(pod string, fields []string) {
		dropped = append(dropped, pod+": "+strings.Join(fields, " "))
	}})
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d pods, %v", len(pods), err)
	}
	if want := "shop/web: spec.volumes"; len(dropped) != 1 || dropped[0] != want {
		t.Errorf("dropped %q, want %q", dropped, want)
	}
	var want typesv1.Pod
	if err := protojson.Unmarshal([]byte(wholeWant), &want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(pods[0], &want) {
		t.Errorf("got  %v\nwant %v", pods[0], &want)
	}
}

const (
	a = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"ua"},"spec":{"containers":[{"name":"c"}]}}`
	b = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","uid":"ub"},"spec":{"containers":[{"name":"c"}]}}`
)

func TestDecodeManyDocuments(t *testing.T) {
	t.Parallel()
	yamlA := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: ua}\nspec:\n  containers:\n  - name: c\n"
	for name, text := range map[string]string{
		"YAML documents": "# two pods\n---\n" + yamlA + "---\n# nothing\n---\n" +
			strings.NewReplacer("name: a", "name: b", "ua", "ub").Replace(yamlA) + "---\n",
		"JSON documents": a + "\n" + b,
		"JSON with tabs": "\n\t" + strings.ReplaceAll(a, ",", ",\n\t") + b,
		"List":           `{"apiVersion":"v1","kind":"List","items":[` + a + "," + b + `]}`,
		"PodList": `{"apiVersion":"v1","kind":"PodList","items":[` + a + "," +
			strings.Replace(b, `"apiVersion":"v1","kind":"Pod",`, "", 1) + `]}`,
		"list of lists":    `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[` + a + `]},` + b + `]}`,
		"YAML around JSON": "---\n" + a + "\n---\n" + b,
	} {
		pods, err := podspec.Decode(strings.NewReader(text), podspec.Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var uids []string
		for _, p := range pods {
			uids = append(uids, p.GetMetadata().GetUid()+" "+p.GetMetadata().GetNamespace())
		}
		if !slices.Equal(uids, []string{"ua default", "ub default"}) {
			t.Errorf("%s: %q", name, uids)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	pod := func(rest string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u"},` + rest + `}`
	}
	for text, want := range map[string]string{
		"":                                  "there is no pod in it",
		" \n":                               "there is no pod in it",
		"# only words\n":                    "there is no pod in it",
		`{"apiVersion":"v1","kind":"List"}`: "there is no pod in it",
		"{":                                 "document 1: not JSON: unexpected EOF",
		"a: b: c":                           "document 1: not YAML: ",
		"kind: Pod\nkind: Pod":              `document 1: not YAML: yaml: unmarshal errors:`,
		"- 1":                               "document 1: expected an object of kind Pod or List",
		"metadata: {}":                      "document 1: kind is missing: expected Pod or List",
		a + `{"apiVersion":"apps/v1","kind":"Deployment"}`: `document 2: kind Deployment of apiVersion "apps/v1": expected Pod or List of apiVersion "v1"`,
		`{"apiVersion":"v2","kind":"Pod"}`:                 `document 1: kind Pod of apiVersion "v2": expected`,
		`{"apiVersion":"v1","kind":"List","items":[` + a +
			`,{"apiVersion":"v1","kind":"Service"}]}`: `document 1: items[1]: kind Service of apiVersion "v1"`,
		`{"apiVersion":"v1","kind":"List","items":[7]}`:                                    "document 1: items[0]: expected an object",
		`{"apiVersion":"v1","kind":"List","items":7}`:                                      "document 1: items: expected a list",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n"}}`:         "document 1: pod n/a: metadata.uid is missing",
		`{"apiVersion":"v1","kind":"Pod"}`:                                                 "document 1: pod default/(no name): metadata.uid is missing",
		pod(`"spec":{"containers":{}}`):                                                    "document 1: pod default/a: pod.spec.containers: expected a list, found object",
		pod(`"spec":{"containers":[{"name":7}]}`):                                          "expected a text, found number",
		pod(`"spec":{"hostNetwork":"yes"}`):                                                "pod.spec.hostNetwork: expected true or false, found string",
		pod(`"spec":{"priority":"high"}`):                                                  "pod.spec.priority: expected a whole number, found string",
		pod(`"spec":7`):                                                                    "pod.spec: expected an object, found number",
		pod(`"spec":{"containers":[{"name":"c"},{"resources":{"limits":{"cpu":"two"}}}]}`): `pod.spec.containers[1].resources.limits["cpu"]: "two": expected a Kubernetes quantity`,
		pod(`"spec":{"initContainers":[{"resources":{"requests":{"memory":"1 GB"}}}]}`):    `pod.spec.initContainers[0].resources.requests["memory"]: "1 GB": expected`,
		pod(`"spec":{"resources":{"requests":{"cpu":true}}}`):                              `pod.spec.resources.requests["cpu"]: expected a Kubernetes quantity`,
		pod(`"spec":{"overhead":{"cpu":""}}`):                                              `pod.spec.overhead["cpu"]: "": expected`,
	} {
		pods, err := podspec.Decode(strings.NewReader(text), podspec.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v, %v\nwant %s", text, pods, err, want)
		}
	}
}

func TestIgnoredFields(t *testing.T) {
	t.Parallel()
	text := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u"},"newer":1,` +
		`"spec":{"Priority":3,"containers":[{"name":"c","resource":{"limits":{"cpu":"1"}}}]}}`
	var got []string
	pods, err := podspec.Decode(strings.NewReader(text),
		podspec.Options{Ignored: func(pod, what string) { got = append(got, pod+": "+what) }})
	if err != nil {
		t.Fatal(err)
	}
	if spec := pods[0].GetSpec(); spec.Priority != nil || spec.GetContainers()[0].GetResources() != nil {
		t.Errorf("taken nevertheless: %v", spec)
	}
	slices.Sort(got)
	want := []string{
		`default/a: unknown field "newer"`,
		`default/a: unknown field "spec.Priority"`,
		`default/a: unknown field "spec.containers[0].resource"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	if _, err := podspec.Decode(strings.NewReader(text), podspec.Options{}); err != nil {
		t.Errorf("with nobody to tell: %v", err)
	}
}

// TestIgnoredFieldsOfARefusedPod: a pod's unknown fields and resources are named also if the pod is refused for something else.
func TestIgnoredFieldsOfARefusedPod(t *testing.T) {
	t.Parallel()
	const misspelt = `{"name":"c","resource":{},"resources":{"limits":{"gpu":"1"%s}}%s}`
	for name, pod := range map[string]string{
		"an amount":       `{"name":"a","uid":"u"},"spec":{"containers":[` + fmt.Sprintf(misspelt, `,"cpu":"x"`, "") + `]}`,
		"a type":          `{"name":"a","uid":"u"},"spec":{"containers":[` + fmt.Sprintf(misspelt, "", `,"image":1`) + `]}`,
		"another's type":  `{"name":"a","uid":"u"},"spec":{"containers":[` + fmt.Sprintf(misspelt, "", "") + `],"initContainers":{}}`,
		"no uid":          `{"name":"a"},"spec":{"containers":[` + fmt.Sprintf(misspelt, "", "") + `]}`,
		"a later pod":     `{"name":"a","uid":"u"},"spec":{"containers":[` + fmt.Sprintf(misspelt, "", "") + `]}} {"kind":"Service"`,
		"what comes next": `{"name":"a","uid":"u"},"spec":{"containers":[` + fmt.Sprintf(misspelt, "", "") + `]}} [`,
	} {
		var got []string
		_, err := podspec.Decode(strings.NewReader(`{"apiVersion":"v1","kind":"Pod","metadata":`+pod+`}`),
			podspec.Options{Ignored: func(pod, what string) { got = append(got, pod+": "+what) }})
		if err == nil || len(got) != 2 || got[0] != `default/a: unknown field "spec.containers[0].resource"` ||
			!strings.HasPrefix(got[1], `default/a: unknown resource "gpu" in "spec.containers[0].resources.limits"`) {
			t.Errorf("%s: %v, told %q", name, err, got)
		}
		_, err = podspec.DecodeManifests(strings.NewReader(`{"apiVersion":"v1","kind":"Pod","metadata":`+pod+`}`), podspec.Options{})
		if err == nil || !strings.Contains(err.Error(), got[0]+"; pod "+got[1]) {
			t.Errorf("%s: %v does not name %q", name, err, got)
		}
	}
}

// TestRepeatedKeys: of a key that is there twice each reader takes another value, so a text
// with one is refused, in JSON as in YAML.
func TestRepeatedKeys(t *testing.T) {
	t.Parallel()
	const json = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u"},"spec":%s}`
	for spec, want := range map[string]string{
		`{"containers":[{"name":"c"}],"securityContext":{"runAsNonRoot":true},"securityContext":{}}`:                         `"securityContext"`,
		`{"containers":[{"name":"c","securityContext":{"privileged":false,"privileged":true}}]}`:                             `"privileged"`,
		`{"containers":[{"name":"c","name":"c"}]}`:                                                                           `"name"`,
		`{"containers":[[{"a":1},{"a":1,"\u0061":2}]]}`:                                                                      `"a"`,
		`{"containers":[{"name":"a","image":"name"},{"name":"b","image":"name"}],"nodeSelector":{"name":"name","a":"name"}}`: "",
	} {
		_, err := podspec.Decode(strings.NewReader(fmt.Sprintf(json, spec)), podspec.Options{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want+" is set twice")) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	yaml := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: u}\nspec: {hostPID: false, containers: [{name: c}], hostPID: true}\n"
	if _, err := podspec.Decode(strings.NewReader(yaml), podspec.Options{}); err == nil || !strings.Contains(err.Error(), "hostPID") {
		t.Errorf("YAML: %v", err)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pod.json")
	if err := os.WriteFile(path, []byte(a), 0o600); err != nil {
		t.Fatal(err)
	}
	if pods, err := podspec.Load(t.Context(), path, nil, podspec.Options{}); err != nil || len(pods) != 1 {
		t.Errorf("%v, %v", pods, err)
	}
	if pods, err := podspec.Load(t.Context(), "-", strings.NewReader(a), podspec.Options{}); err != nil || len(pods) != 1 {
		t.Errorf("standard input: %v, %v", pods, err)
	}
	if _, err := podspec.Load(t.Context(), "-", strings.NewReader(""), podspec.Options{}); err == nil ||
		err.Error() != "standard input: there is no pod in it" {
		t.Errorf("empty: %v", err)
	}
	if _, err := podspec.Load(t.Context(), path+"x", nil, podspec.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	broken := io.MultiReader(strings.NewReader("kind: "), brokenReader{})
	if _, err := podspec.Load(t.Context(), "-", broken, podspec.Options{}); !errors.Is(err, errBroken) {
		t.Errorf("broken input: %v", err)
	}
}

var errBroken = errors.New("broken")

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }

func TestGeneratedUID(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	if _, err := podspec.FromPod(pod, podspec.Options{}); !errors.Is(err, podspec.ErrNoUID) ||
		!strings.Contains(err.Error(), "default/web") {
		t.Errorf("without leave: %v", err)
	}
	o := podspec.Options{GenerateUID: true}
	got, err := podspec.FromPod(pod, o)
	// The spelling is pinned: a uid that changes with a release would make a pod that is admitted an unknown one.
	if want := "0b81d159-82f3-8448-80cd-a654d07041cb"; err != nil || got.GetMetadata().GetUid() != want {
		t.Errorf("%v, %v; want %s", got, err, want)
	}
	named := pod.DeepCopy()
	named.Namespace = "default"
	if again, err := podspec.FromPod(named, o); err != nil || !proto.Equal(again, got) {
		t.Errorf("%v, %v; want the same", again, err)
	}
	named.Namespace = "other"
	if other, err := podspec.FromPod(named, o); err != nil || other.GetMetadata().GetUid() == got.GetMetadata().GetUid() {
		t.Errorf("%v, %v; want another uid", other, err)
	}
	if _, err := podspec.FromPod(&corev1.Pod{}, o); err == nil {
		t.Error("a uid was made from no name")
	}
	named.UID = "mine"
	if kept, err := podspec.FromPod(named, o); err != nil || kept.GetMetadata().GetUid() != "mine" {
		t.Errorf("%v, %v; want the given uid", kept, err)
	}
}

// TestFromPodIsDecode: a Go value gives what its text gives.
func TestFromPodIsDecode(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "ua"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("0.5")},
		}}}},
	}
	got, err := podspec.FromPod(pod, podspec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(a, `"name":"c"`, `"name":"c","resources":{"requests":{"cpu":"500m"}}`, 1)
	want, err := podspec.Decode(strings.NewReader(text), podspec.Options{})
	if err != nil || !proto.Equal(got, want[0]) {
		t.Errorf("got %v, want %v, %v", got, want, err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		answer *admissionv1.AdmitResponse
		want   corev1.PodStatus
	}{
		{
			&admissionv1.AdmitResponse{
				Verdict: admissionv1.Verdict_VERDICT_REJECTED, Reason: "TopologyAffinityError",
				Message:  "Resources cannot be allocated with Topology locality",
				QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
			},
			corev1.PodStatus{
				Phase: corev1.PodFailed, Reason: "TopologyAffinityError", QOSClass: corev1.PodQOSGuaranteed,
				Message: "Pod was rejected: Resources cannot be allocated with Topology locality",
			},
		},
		{
			&admissionv1.AdmitResponse{Verdict: admissionv1.Verdict_VERDICT_ADMITTED, QosClass: typesv1.QOSClass_QOS_CLASS_BURSTABLE},
			corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable},
		},
		{
			&admissionv1.AdmitResponse{Verdict: admissionv1.Verdict_VERDICT_DEFERRED, Message: "not yet",
				QosClass: typesv1.QOSClass_QOS_CLASS_BEST_EFFORT},
			corev1.PodStatus{Phase: corev1.PodPending, Message: "not yet", QOSClass: corev1.PodQOSBestEffort},
		},
		{nil, corev1.PodStatus{Phase: corev1.PodPending}},
	} {
		if got := podspec.Status(row.answer); !reflect.DeepEqual(got, row.want) {
			t.Errorf("%v:\ngot  %+v\nwant %+v", row.answer, got, row.want)
		}
	}
}

// FuzzDecode: a text gives pods with an identity, or an error; and what it gives can be sent.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{whole, a, b, a + b, "---\n" + whole + "---\n" + a,
		`{"apiVersion":"v1","kind":"List","items":[` + a + `]}`, "&a [*a]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		pods, err := podspec.Decode(strings.NewReader(text), podspec.Options{GenerateUID: true})
		if err == nil && len(pods) == 0 {
			t.Fatal("neither pods nor an error")
		}
		for _, p := range pods {
			if p.GetMetadata().GetUid() == "" {
				t.Errorf("no uid: %v", p)
			}
			if _, err := proto.Marshal(p); err != nil {
				t.Errorf("cannot be sent: %v", err)
			}
		}
	})
}
