package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBOM writes a bill of materials. The same programs give the same bytes: there is no
// time in it, and its serial number is made from its contents.
func (c contents) writeBOM(path string) error {
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{
		Component: &cdx.Component{
			BOMRef: "berth", Type: cdx.ComponentTypeApplication, Name: "berth", Version: c.programs[0].version,
			Licenses: licences([]string{"Apache-2.0"}),
		},
		Properties: &[]cdx.Property{{Name: "berth:go", Value: c.goVersion}, {Name: "berth:platform", Value: c.platform}},
	}
	var components []cdx.Component
	var dependencies []cdx.Dependency
	refs := map[string]string{}
	for _, m := range c.modules {
		refs[m.path] = purl(m.path, m.version)
		component := cdx.Component{
			BOMRef: refs[m.path], Type: cdx.ComponentTypeLibrary, Name: m.path, Version: m.version,
			PackageURL: refs[m.path], Licenses: licences(m.licences),
		}
		if m.sum != "" {
			// The go command's hash of a module is one over the hashes of its files.
			component.Properties = &[]cdx.Property{{Name: "berth:go.sum", Value: m.sum}}
		}
		components = append(components, component)
	}
	var all []string
	for _, p := range c.programs {
		ref := "program:" + p.name
		all = append(all, ref)
		components = append(components, cdx.Component{
			BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: p.name, Version: p.version, Licenses: licences([]string{"Apache-2.0"}),
		})
		var needs []string
		for _, part := range p.parts {
			needs = append(needs, refs[part])
		}
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &needs})
	}
	dependencies = append([]cdx.Dependency{{Ref: "berth", Dependencies: &all}}, dependencies...)
	b.Components, b.Dependencies = &components, &dependencies
	text, err := encode(b)
	if err != nil {
		return err
	}
	// An UUID of version 8, whose bits are the writer's to choose.
	sum := sha256.Sum256(text)
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	b.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	if text, err = encode(b); err != nil {
		return err
	}
	if path == "" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

func encode(b *cdx.BOM) ([]byte, error) {
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(b, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

func licences(names []string) *cdx.Licenses {
	var all cdx.Licenses
	for _, n := range names {
		all = append(all, cdx.LicenseChoice{License: &cdx.License{ID: n}})
	}
	if all == nil {
		return nil
	}
	return &all
}

// purl is a module's package URL.
func purl(path, version string) string {
	elements := strings.Split(path, "/")
	for i, e := range elements {
		elements[i] = url.PathEscape(e)
	}
	return "pkg:golang/" + strings.Join(elements, "/") + "@" + url.PathEscape(version)
}
