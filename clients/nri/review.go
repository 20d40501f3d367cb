package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/nri/monitor"
	"github.com/berthd/berth/managers/errdefs"
)

// metrics are the flags of what is served on an address of the node.
type metrics struct {
	address, certificate, key string
	sockets                   map[string]string
}

func (m *metrics) add(f *pflag.FlagSet) {
	f.StringVar(&m.address, "metrics-address", "",
		"in a pod, HOST:PORT for /metrics over HTTPS; callers need a token of the cluster, and the right to get the path; empty for none")
	f.StringVar(&m.certificate, "metrics-certificate", "",
		"file with the certificate of --metrics-address; it is read again for each connection")
	f.StringVar(&m.key, "metrics-key", "", "file with the key of that certificate")
	f.StringToStringVar(&m.sockets, "metrics-sockets", nil,
		"NAME=SOCKET of other programs: their /metrics are /metrics/NAME at --metrics-address")
	trust.Mark(f, trust.File, "metrics-certificate", "metrics-key")
}

func (m *metrics) check() error {
	if m.address == "" {
		if m.certificate != "" || m.key != "" || len(m.sockets) > 0 {
			return errdefs.Invalidf("--metrics-certificate, --metrics-key and --metrics-sockets need --metrics-address")
		}
		return nil
	}
	if m.certificate == "" || m.key == "" {
		return errdefs.Invalidf("--metrics-address needs --metrics-certificate and --metrics-key")
	}
	for name, socket := range m.sockets {
		if name == "" || strings.Contains(name, "/") || !strings.HasPrefix(socket, "/") {
			return errdefs.Invalidf("--metrics-sockets %s=%s: expected a name and the absolute path of a socket", name, socket)
		}
		if err := trust.CheckSocket(socket); err != nil {
			return fmt.Errorf("--metrics-sockets %s: %w", name, err)
		}
	}
	return nil
}

// serve serves the metrics until stop is called.
func (m *metrics) serve(server *apiServer, own http.Handler) (stop func(), err error) {
	if m.address == "" {
		return func() {}, nil
	}
	if server == nil {
		return nil, errdefs.Preconditionf("--metrics-address needs a service account (--service-account)")
	}
	return monitor.Serve(monitor.Config{
		Address: m.address, Certificate: m.certificate, Key: m.key, Review: server.review, Own: own, Others: m.sockets, Log: server.log,
		Now: time.Now,
	})
}

// review reports whether the owner of a token may get a path.
func (a *apiServer) review(ctx context.Context, token, path string) (bool, error) {
	who := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token},
	}
	var owner authenticationv1.TokenReview
	if err := a.call(ctx, http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", &who, &owner); err != nil {
		return false, err
	}
	if !owner.Status.Authenticated || owner.Status.User.Username == "" {
		return false, nil
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range owner.Status.User.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	may := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: owner.Status.User.Username, UID: owner.Status.User.UID, Groups: owner.Status.User.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		},
	}
	var verdict authorizationv1.SubjectAccessReview
	if err := a.call(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &may, &verdict); err != nil {
		return false, err
	}
	return verdict.Status.Allowed && !verdict.Status.Denied, nil
}
