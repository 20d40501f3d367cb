// Command helm renders a Helm chart many times in one process, as `helm template` does, with Helm's own library:
//
//	helm CHART < values
//
// CHART is a directory or the archive of a chart. Each line of the input is an object of values, and each line of the output an object with
// what they render: the text in the field objects, or the error of the schema or of a template in the field error.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "use: helm CHART < values")
		os.Exit(2)
	}
	if err := answer(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// rendered is a line of the output.
type rendered struct {
	Objects string `json:"objects,omitempty"`
	Error   string `json:"error,omitempty"`
}

func answer(name string, in io.Reader, out io.Writer) error {
	c, err := loader.Load(name)
	if err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	lines, write := bufio.NewScanner(in), json.NewEncoder(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var values map[string]any
		if err := json.Unmarshal(lines.Bytes(), &values); err != nil {
			return fmt.Errorf("values %s: %w", lines.Bytes(), err)
		}
		var r rendered
		if r.Objects, err = render(c, values); err != nil {
			r.Error = err.Error()
		}
		if err := write.Encode(r); err != nil {
			return err
		}
	}
	return lines.Err()
}

// render returns the objects as `helm install` of a release named berth would send them.
func render(c *chart.Chart, values map[string]any) (string, error) {
	options := common.ReleaseOptions{Name: "berth", Namespace: "default", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, values, options, nil)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) == ".yaml" && strings.TrimSpace(files[name]) != "" {
			fmt.Fprintf(&text, "---\n%s\n", files[name])
		}
	}
	return text.String(), nil
}
