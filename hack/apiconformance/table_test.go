package apiconformance

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
	"github.com/berthd/berth/hack/apireasons"
)

// short is a method's name without its package.
func short(method string) string {
	return method[strings.LastIndexByte(method[:strings.LastIndexByte(method, '/')], '.')+1:]
}

// codesOfReasons reads which code each reason has: the headings of errors.proto.
func codesOfReasons(t *testing.T) map[errorsv1.ErrorReason]codes.Code {
	t.Helper()
	text, err := os.ReadFile("../../proto/berth/errors/v1/errors.proto")
	if err != nil {
		t.Fatal(err)
	}
	out := map[errorsv1.ErrorReason]codes.Code{}
	heading, value := regexp.MustCompile(`^  // ([A-Z_]+)[:.]`), regexp.MustCompile(`^  ([A-Z_]+) = `)
	var code codes.Code
	for line := range strings.SplitSeq(string(text), "\n") {
		if m := heading.FindStringSubmatch(line); m != nil {
			if err := code.UnmarshalJSON([]byte(`"` + m[1] + `"`)); err != nil {
				t.Fatal(err)
			}
		} else if m := value.FindStringSubmatch(line); m != nil {
			out[errorsv1.ErrorReason(errorsv1.ErrorReason_value[m[1]])] = code
		}
	}
	if len(out) != len(errorsv1.ErrorReason_name) {
		t.Fatalf("errors.proto has %d reasons, the package %d", len(out), len(errorsv1.ErrorReason_name))
	}
	return out
}

// fails calls a method, also one with a stream, and returns its first error.
func (n *node) fails(conn *grpc.ClientConn, method string, d protoreflect.MethodDescriptor, req proto.Message) error {
	n.t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.Output().FullName())
	if err != nil {
		n.t.Fatal(err)
	}
	if !d.IsStreamingServer() {
		return conn.Invoke(n.ctx(), method, req, kind.New().Interface())
	}
	stream, err := conn.NewStream(n.ctx(), &grpc.StreamDesc{ServerStreams: true}, method)
	if err == nil {
		err = stream.SendMsg(req)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err == nil {
		err = stream.RecvMsg(kind.New().Interface())
	}
	return err
}

// declared reports a reason that the table of apireasons does not have for the method.
func (n *node) declared(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	reasons, ok := apireasons.Methods[method[1:]]
	for _, d := range status.Convert(err).Details() {
		info, is := d.(*errdetails.ErrorInfo)
		r := errorsv1.ErrorReason(errorsv1.ErrorReason_value[info.GetReason()])
		if ok && is && !slices.Contains(reasons, r) && !slices.Contains(apireasons.Common, r) {
			n.t.Errorf("%s has failed with %s, which apireasons does not have: %v", method, info.GetReason(), err)
		}
	}
	return err
}

// TestReasons makes berthd return every reason of every method in the table of apireasons, and
// no other one.
func TestReasons(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs to act as another user, this is uid %d", os.Geteuid())
	}
	all, code := methods(t), codesOfReasons(t)
	full := map[string]string{}
	for method := range all {
		full[short(method)] = method
		if _, ok := apireasons.Methods[method[1:]]; !ok {
			t.Errorf("%s has no row in apireasons.Methods", method)
		}
	}
	reached := map[string]bool{}
	for _, s := range settings() {
		for _, f := range s.rows {
			method := full[f.method]
			if !slices.Contains(apireasons.Methods[strings.TrimPrefix(method, "/")], f.reason) {
				t.Errorf("%q: %s is not in apireasons.Methods", f.method, f.reason)
			}
			reached[f.method+" "+f.reason.String()] = true
		}
	}
	missing := map[string]bool{}
	for number := range errorsv1.ErrorReason_name {
		r := errorsv1.ErrorReason(number)
		_, never := unreached[r.String()]
		named := number == 0 || never || slices.Contains(apireasons.Common, r)
		for _, reasons := range apireasons.Methods {
			named = named || slices.Contains(reasons, r)
		}
		if !named {
			t.Errorf("no method has %s", r)
		}
	}
	for method, reasons := range apireasons.Methods {
		if all["/"+method] == nil {
			t.Errorf("%s of apireasons.Methods is no method", method)
		}
		for _, r := range reasons {
			if !reached[short(method)+" "+r.String()] {
				missing[short(method)+" "+r.String()] = true
			}
		}
	}
	for at := range missing {
		if _, ok := unreached[at]; !ok {
			t.Errorf("%s: no row makes it, and unreached does not say why", at)
		}
	}
	for at := range unreached {
		if !missing[at] && strings.Contains(at, " ") {
			t.Errorf("%s is in unreached, and in a row or in no method", at)
		}
	}
	for _, s := range settings() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, s.config, s.flags...)
			if s.disk {
				n.mountDisk()
			}
			agent := n.dial(unprivileged)
			s.prepare(n)
			for _, f := range s.rows {
				conn, who := n.conn, "root"
				if f.agent {
					conn, who = agent, "the agent"
				}
				err := n.fails(conn, full[f.method], all[full[f.method]], f.request(n))
				if got := reasonOf(t, err); got != f.reason.String() || status.Code(err) != code[f.reason] {
					t.Errorf("%s by %s: %v with %q, want %s with %s", f.method, who, err, got, code[f.reason], f.reason)
				}
			}
		})
	}
}

// TestCommonReasons makes berthd return the reasons of apireasons.Common for every method, apart
// from those in unreached.
func TestCommonReasons(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs to act as another user, this is uid %d", os.Geteuid())
	}
	const most = 50
	n := newNode(t, fmt.Sprintf("access: [{uid: %d, roles: [read, agent, provider, admin]}]\nlimits: {userCalls: 2, messageElements: %d}\n", unprivileged, most))
	user, nobody := n.dial(unprivileged), n.dial(unprivileged+1)
	code := codesOfReasons(t)
	seen := map[errorsv1.ErrorReason]int{}
	want := func(method string, err error, r errorsv1.ErrorReason) {
		t.Helper()
		seen[r]++
		if got := reasonOf(t, err); got != r.String() || status.Code(err) != code[r] {
			t.Errorf("%s: %v with %q, want %s with %s", method, err, got, code[r], r)
		}
	}
	all := methods(t)
	for method, d := range all {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName())
		if err != nil {
			t.Fatal(err)
		}
		req := kind.New().Interface()
		want(method, n.fails(nobody, method, d, req), errorsv1.ErrorReason_ROLE_MISSING)
		if fill(req.ProtoReflect(), most+1, 4) {
			want(method, n.fails(user, method, d, req), errorsv1.ErrorReason_LIMIT_EXCEEDED)
		}
	}
	for range 2 { // streams that stay
		stream, err := allocationv1.NewAllocationServiceClient(user).Watch(n.ctx(), &allocationv1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	for method, d := range all {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName())
		if err != nil {
			t.Fatal(err)
		}
		want(method, n.fails(user, method, d, kind.New().Interface()), errorsv1.ErrorReason_TOO_MANY_CALLS)
	}
	for _, r := range apireasons.Common {
		if _, ok := unreached[r.String()]; ok == (seen[r] > 0) {
			t.Errorf("%s: %d times, named as unreached %t", r, seen[r], ok)
		}
	}
	if seen[errorsv1.ErrorReason_LIMIT_EXCEEDED] < 10 {
		t.Errorf("%d methods have lists", seen[errorsv1.ErrorReason_LIMIT_EXCEEDED])
	}
}

// TestReferenceHasTheReasons: docs/api-reference.md has the reasons of each method.
func TestReferenceHasTheReasons(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/api-reference.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	method := ""
	for line := range strings.SplitSeq(string(text), "\n") {
		if name, ok := strings.CutPrefix(line, "#### "); ok {
			method = strings.Replace(name, ".", "/", 1)
		} else if reasons, ok := strings.CutPrefix(line, "Reasons of errors: "); ok {
			listed[method] = reasons
		}
	}
	for method, reasons := range apireasons.Methods {
		want := "those of every method."
		for _, r := range slices.Backward(reasons) {
			want = "`" + r.String() + "`, " + want
		}
		if listed[short(method)] != want {
			t.Errorf("%s: the page has %q, want %q", method, listed[short(method)], want)
		}
	}
	if len(listed) != len(apireasons.Methods) {
		t.Errorf("the page has reasons of %d methods, apireasons of %d", len(listed), len(apireasons.Methods))
	}
}

// fill puts elements into the first list or map of a message, or of one in it. It returns
// false if there is none within a depth.
func fill(m protoreflect.Message, elements, depth int) bool {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsMap() && f.MapKey().Kind() == protoreflect.StringKind && f.MapValue().Message() == nil:
			for j := range elements {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString(fmt.Sprint(j)).MapKey(), f.MapValue().Default())
			}
			return true
		case f.IsList():
			list := m.Mutable(f).List()
			for range elements {
				list.Append(list.NewElement())
			}
			return true
		}
	}
	for i := range fields.Len() {
		if f := fields.Get(i); depth > 0 && f.Message() != nil && !f.IsMap() && !f.IsList() {
			inner := m.NewField(f)
			if fill(inner.Message(), elements, depth-1) {
				m.Set(f, inner)
				return true
			}
		}
	}
	return false
}
