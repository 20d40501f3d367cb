// Package image finds root file systems of containers on disk: plain directories, and OCI image
// layouts and archives of docker save, whose layers it unpacks for overlayfs.
//
// Words:
//
//   - reference: the image in a manifest: a path, absolute or below the store's
//     directory of images. For a layout, a colon and a tag follow.
//   - layout: a directory with a file "oci-layout" (OCI image specification,
//     image-layout.md). Any other directory is a root file system.
//   - archive: an uncompressed tar file with a layout or with the format of docker
//     save. It is read in place.
//   - layer: one unpacked archive of a layout, stored under its digest. The
//     archive's whiteouts (layer.md) become those of overlayfs.
//
// Invariants: no name or link of a layer leads outside its directory. A blob with another digest
// is refused. A layer is stored completely or not at all.
package image
