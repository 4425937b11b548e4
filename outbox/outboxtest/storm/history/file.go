package history

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
)

// Save writes a history to a file, compressed.
func (h *History) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := bufio.NewWriter(f)
	z := gzip.NewWriter(b)
	if err := json.NewEncoder(z).Encode(h); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// Load reads what Save has written.
func Load(path string) (*History, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("read history %s: %w", path, err)
	}
	defer z.Close()
	var h History
	if err := json.NewDecoder(z).Decode(&h); err != nil {
		return nil, fmt.Errorf("read history %s: %w", path, err)
	}
	return &h, nil
}
