package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/table"
)

// ExplainMissing prints what a rejected pod lacked.
func ExplainMissing(w io.Writer, t *typesv1.Trace) {
	title := "\nmissing\n"
	for _, text := range t.GetMissing() {
		fmt.Fprintf(w, "%s  %s\n", title, OneLine(text))
		title = ""
	}
}

// AmountOf returns an amount of a resource.
func AmountOf(resource string, n uint64) string {
	if resource == "memory" || strings.HasPrefix(resource, "hugepages-") {
		return table.Bytes(n)
	}
	return strconv.FormatUint(n, 10)
}
