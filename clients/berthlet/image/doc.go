// Package image finds the root file systems of containers on disk: plain
// directories, and OCI image layouts and archives of docker save, whose layers it unpacks for overlayfs.
//
// Words:
//
//   - reference: what a manifest has as image: a path, absolute or below the
//     store's folder of images, and for a layout a tag behind a colon.
//   - layout: a directory with a file "oci-layout" (OCI image specification,
//     image-layout.md). Any other directory is a root file system as it is.
//   - archive: a tar file, not compressed, with a layout or with what docker save
//     writes. It is read in place.
//   - layer: one unpacked archive of a layout, kept under its digest. What the
//     archive says is gone (whiteouts, layer.md) becomes what overlayfs takes for
//     that.
//
// Invariants: nothing in a layer's name or link leads outside its directory; a
// blob whose digest differs is refused; a layer is there whole or not at all.
package image
