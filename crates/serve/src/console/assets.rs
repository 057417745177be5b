//! The style, the script and the icon of the pages, in the binary.
//!
//! Ground rules: the path of an asset has a hash of its content. So a browser keeps it for ever, and a new
//! version of the server has new paths. Nothing is read from a disk, and nothing is loaded from elsewhere.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// One file of the pages.
pub(super) struct Asset {
    content: &'static str,
    media_type: &'static str,
    /// The last part of its path: stem, hash and extension.
    file: String,
}

impl Asset {
    fn new(stem: &str, extension: &str, media_type: &'static str, content: &'static str) -> Asset {
        let hash = blake3::hash(content.as_bytes()).to_hex();
        Asset { content, media_type, file: format!("{stem}.{}.{extension}", &hash[..16]) }
    }

    /// Returns its path.
    pub(super) fn path(&self) -> String {
        format!("/assets/{}", self.file)
    }
}

pub(super) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console", "css", "text/css; charset=utf-8", include_str!("assets/console.css"))
});
pub(super) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console", "js", "text/javascript; charset=utf-8", include_str!("assets/console.js"))
});
pub(super) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")));

/// `GET /assets/{file}`
pub(super) async fn get(Path(file): Path<String>) -> Response {
    let assets = [&*STYLE, &*SCRIPT, &*ICON];
    let Some(asset) = assets.into_iter().find(|asset| asset.file == file) else {
        // A page of an older version of this server asks for its own files: it must not keep this answer.
        return (StatusCode::NOT_FOUND, [(header::CACHE_CONTROL, "no-store")], "no such file")
            .into_response();
    };
    let headers: [(HeaderName, &str); 2] = [
        (header::CONTENT_TYPE, asset.media_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, Bytes::from_static(asset.content.as_bytes())).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_follows_the_content() {
        let one = Asset::new("a", "css", "text/css", "a{}");
        let other = Asset::new("a", "css", "text/css", "b{}");
        assert_ne!(one.path(), other.path());
        assert!(one.path().starts_with("/assets/a.") && one.path().ends_with(".css"), "{}", one.path());
    }

    #[test]
    fn assets_name_no_other_host() {
        for asset in [&*STYLE, &*SCRIPT] {
            assert!(!asset.content.contains("://"), "{}", asset.file);
        }
        assert_eq!(ICON.content.matches("://").count(), 1, "the namespace of SVG");
    }
}
