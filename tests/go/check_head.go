package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// main KEY HEAD TILES: opens a signed head, rebuilds its root from the level-0 tile, prints size and root.
func main() {
	verifier, err := note.NewVerifier(os.Args[1])
	check(err)
	data, err := os.ReadFile(os.Args[2])
	check(err)
	opened, err := note.Open(data, note.VerifierList(verifier))
	check(err)
	lines := strings.Split(opened.Text, "\n")
	var size int64
	fmt.Sscan(lines[1], &size)
	root, err := base64.StdEncoding.DecodeString(lines[2])
	check(err)
	var want tlog.Hash
	copy(want[:], root)
	tile, err := os.ReadFile(os.Args[3])
	check(err)
	var stored []tlog.Hash
	read := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, x := range at {
			out[i] = stored[x]
		}
		return out, nil
	})
	for n := int64(0); n < size; n++ {
		var leaf tlog.Hash
		copy(leaf[:], tile[n*32:])
		more, err := tlog.StoredHashesForRecordHash(n, leaf, read)
		check(err)
		stored = append(stored, more...)
	}
	got, err := tlog.TreeHash(size, read)
	check(err)
	if got != want {
		panic("the root is another")
	}
	fmt.Println(size, got)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
