package rpc

import (
	"testing"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/wire"
)

// TestAnswersWithInvalidTexts: a text of a damaged record, which is no UTF-8, does not make the whole answer fail.
func TestAnswersWithInvalidTexts(t *testing.T) {
	t.Parallel()
	data, err := counting{wire.Codec()}.Marshal(&inspectv1.CheckResponse{StartReport: []string{"key \xff\xfe is damaged"},
		Findings: []*inspectv1.Finding{{}}})
	if err != nil {
		t.Fatal(err)
	}
	var got inspectv1.CheckResponse
	if err := proto.Unmarshal(data.Materialize(), &got); err != nil || len(got.GetFindings()) != 1 ||
		got.GetStartReport()[0] != "key \uFFFD is damaged" {
		t.Errorf("%v, %v", &got, err)
	}
}

// TestErrorsWithInvalidTexts: the same for the message, the metadata and the fields of an error.
func TestErrorsWithInvalidTexts(t *testing.T) {
	t.Parallel()
	err := &errdefs.Error{Class: errdefs.Invalid, Message: "pod \xff", Resource: "r\xff",
		Fields: []errdefs.Violation{{Field: "f\xff", Description: "d\xff"}}}
	st := status.Convert(Status(t.Context(), err))
	if _, err := proto.Marshal(st.Proto()); err != nil || !utf8.ValidString(st.Message()) {
		t.Errorf("%q: %v", st.Message(), err)
	}
	info, fields := false, false
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d.GetReason() == "REQUEST_INVALID" && d.GetMetadata()["resource"] == "r\uFFFD"
		case *errdetails.BadRequest:
			fields = len(d.GetFieldViolations()) == 1 && d.GetFieldViolations()[0].GetField() == "f\uFFFD"
		}
	}
	if !info || !fields {
		t.Errorf("details %v", st.Details())
	}
}
