//! The derive of `portcullis_rpc::Linked`, and the attribute `portcullis_rpc::service`. They are used through that crate.
#![forbid(unsafe_code)]

mod service;

use proc_macro::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, GenericParam, parse_macro_input, parse_quote};

/// Derives `Linked` for a struct whose fields are all `Linked`: the struct's copy consists of the copies of its fields.
#[proc_macro_derive(Linked)]
pub fn linked(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    copying(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Makes a typed client and a typed server from a trait. `portcullis_rpc`, which re-exports this attribute, documents
/// the traits that it accepts and the types that it generates.
#[proc_macro_attribute]
pub fn service(attribute: TokenStream, item: TokenStream) -> TokenStream {
    service::expand(attribute.into(), item.into()).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn copying(mut input: DeriveInput) -> Result<proc_macro2::TokenStream, Error> {
    let name = &input.ident;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(name.span(), "a struct is Linked: any bytes are a value of it"));
    };
    // The fields of a tuple struct are named by numbers, here and in the struct expression that is generated.
    let fields = data.fields.members().collect::<Vec<_>>();
    let types = data.fields.iter().map(|field| &field.ty);
    for parameter in &mut input.generics.params {
        if let GenericParam::Type(parameter) = parameter {
            parameter.bounds.push(parse_quote!(::portcullis_rpc::Linked));
        }
    }
    let (parameters, arguments, conditions) = input.generics.split_for_impl();
    Ok(quote! {
        impl #parameters ::portcullis_rpc::Linked for #name #arguments #conditions {
            const IS_FLAT: bool = true #(&& <#types as ::portcullis_rpc::Linked>::IS_FLAT)*;

            fn copy<S, R>(
                self,
                copying: &mut ::portcullis_rpc::Copying<'_, S, R>,
            ) -> ::core::result::Result<Self, ::portcullis_rpc::GrowError>
            where
                S: ::portcullis_rpc::Source,
                R: ::portcullis_rpc::Room,
            {
                ::core::result::Result::Ok(Self {
                    #(#fields: ::portcullis_rpc::Linked::copy(self.#fields, copying)?,)*
                })
            }

            fn pointers(
                self,
                at: u64,
                found: &mut ::portcullis_rpc::Pointers<'_, '_>,
            ) -> ::core::result::Result<(), ::portcullis_rpc::PointerError> {
                #(::portcullis_rpc::Linked::pointers(
                    self.#fields,
                    at + ::core::mem::offset_of!(Self, #fields) as u64,
                    found,
                )?;)*
                ::core::result::Result::Ok(())
            }
        }
    })
}
